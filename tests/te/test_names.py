"""Names: the closed list of what Transformer Engine's Python layer asks the compiled module for."""

from __future__ import annotations

import ast
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from pytest_precision.ranks.gpus.backend import release_of
from pytest_precision.te.names import NAMES
from pytest_precision.te.stand_in import MODULE, functions

if find_spec("transformer_engine") is None:
    pytest.skip(
        "needs Transformer Engine's wheel: pip install 'pytest-precision[te-cpu]'",
        allow_module_level=True,
    )

EXTENSIONS = "cpp_extensions"
"""The folder of the package that exports all names of the compiled module once more."""


def trees() -> dict[Path, ast.Module]:
    """Return those modules of the Python layer for torch that can take or pass on names, parsed.

    Whatever else there is has no word of the compiled module, and does not stand in the package.
    """
    spec = find_spec("transformer_engine")
    assert spec is not None
    assert spec.submodule_search_locations
    root = Path(spec.submodule_search_locations[0])
    files = [file for part in ("pytorch", "debug") for file in (root / part).rglob("*.py")]
    texts = {file: file.read_text() for file in files}
    return {
        file: ast.parse(text)
        for file, text in texts.items()
        if EXTENSIONS in file.parts or MODULE in text or EXTENSIONS in text
    }


def exported(tree: ast.Module) -> set[str]:
    """Return the functions, classes and variables that a module defines or imports."""
    found = {
        a.asname or a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names
    }
    defined = (ast.FunctionDef, ast.ClassDef)
    found |= {node.name for node in tree.body if isinstance(node, defined)}
    return found | {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def used(tree: ast.Module, module: str) -> set[str]:
    """Return what a module takes from another one: imported by name, or as an attribute of it."""
    found: set[str] = set()
    aliases: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {a.asname or a.name for a in node.names if a.name.endswith(module)}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[-1] == module:
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            aliases |= {a.asname or a.name for a in node.names if a.name == module}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found |= {node.attr} & ({node.attr} if node.value.id in aliases else set())
    return found - {"*"}


def test_the_list_holds_exactly_the_names_that_the_wheel_uses() -> None:
    """A name that a release adds or drops is seen before a user meets it."""
    parsed = trees()
    of_package = set().union(
        *(exported(tree) for file, tree in parsed.items() if EXTENSIONS in file.parts)
    )
    taken = set().union(*(used(tree, MODULE) for tree in parsed.values()))
    passed_on = set().union(*(used(tree, EXTENSIONS) for tree in parsed.values())) - of_package
    assert taken | passed_on == NAMES[release_of(version("transformer-engine"))]


def test_every_function_of_the_stand_in_is_one_that_the_wheel_uses() -> None:
    """A function that nothing calls is none of the stand-in's."""
    assert functions().keys() <= NAMES[2, 20]
    assert len(functions()) >= 116
