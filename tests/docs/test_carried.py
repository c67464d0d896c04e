"""Each surface on which something is carried names tests that exist."""

from __future__ import annotations

import ast
import re

from documents import ROOT

PAGE = ROOT / "docs" / "architecture.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_what_is_carried_is_shown_by_tests_that_exist() -> None:
    """Each row of the table has at least one, so that no row is a mere claim."""
    text = PAGE.read_text(encoding="utf-8").partition("## What is carried")[2]
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 10
    for row in rows:
        shown_by = NAMED.findall(row.rsplit("|", 2)[1])
        assert shown_by, row
        for file, name in shown_by:
            body = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
            functions = {node.name for node in body if isinstance(node, ast.FunctionDef)}
            assert name in functions, f"{file} has no {name}"
