"""Variables, parameters and fields of the package say what they hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_precision

PACKAGE = Path(pytest_precision.__file__).parent

WITHOUT_CONTENT = re.compile(
    "_*(one|own|found|given|held|kept|made|told|seen|asked|wanted|known|there|here|what|now)_*"
)

PROMISED = {
    ("probes/accuracy/beside_fp64.py", "here"): "a key of report.json",
    ("probes/accuracy/beside_fp64.py", "there"): "a key of report.json",
    ("engine/capture.py", "seen"): "a parameter of `Capture.keep`, which users may name",
    ("trace/header.py", "given"): "a key of the header of a recording",
}
"""Bindings whose names users or files have, and where."""


def bindings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield each variable, parameter and field that code binds, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.name, node.lineno


def without_content(tree: ast.AST) -> list[tuple[str, int]]:
    """Return the bindings whose names are no nouns of the field."""
    return [(name, line) for name, line in bindings(tree) if WITHOUT_CONTENT.fullmatch(name)]


@pytest.mark.parametrize(
    "code",
    [
        "own = 1",
        "def f(given): pass",
        "lambda one: one",
        "[held for held in ()]",
        "class C:\n    seen: int",
        "for _kept, a in (): pass",
        "match x:\n    case [*found]: pass",
        "try: pass\nexcept E as what: pass",
        "if (told := f()): pass",
        "def f(*asked, **known): pass",
    ],
)
def test_every_way_to_bind_a_name_is_read(code: str) -> None:
    """One that is not would let such names in."""
    assert without_content(ast.parse(code))


def test_names_say_what_they_hold() -> None:
    """`gradient` rather than `own`: the word alone tells a reader what the variable is."""
    names = 0
    refused = []
    for file in sorted(PACKAGE.rglob("*.py")):
        path = str(file.relative_to(PACKAGE))
        tree = ast.parse(file.read_text())
        names += sum(1 for _ in bindings(tree))
        refused += [
            f"{path}:{line}: {name}"
            for name, line in without_content(tree)
            if (path, name) not in PROMISED
        ]
    assert names > 20_000
    assert refused == []


def test_promised_names_are_there() -> None:
    """An exception that nothing needs goes."""
    for (path, name), reason in PROMISED.items():
        names = dict(without_content(ast.parse((PACKAGE / path).read_text())))
        assert name in names, f"{path} binds no {name}: {reason}"
