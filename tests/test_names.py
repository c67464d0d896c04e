"""Names of the package: one word for one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest_precision

PACKAGE = Path(pytest_precision.__file__).parent


def test_names_of_public_classes_are_unique() -> None:
    """No two modules have a public class of one name, so that a name in a traceback says which."""
    homes: dict[str, list[str]] = defaultdict(list)
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(file.relative_to(PACKAGE)))
    assert len(homes) > 100
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
