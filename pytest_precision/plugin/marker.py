"""Marker: find the `precision_matrix` mark that holds for a test."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

MARKER = "precision_matrix"
"""Name of the marker that makes a test a matrix test."""

CELL = "precision_cell"
"""Name of the fixture that a matrix test is parametrized by; `cell` and `parity` take it."""


def marker_of(metafunc: pytest.Metafunc) -> pytest.Mark | None:
    """Return a test's `precision_matrix` mark: on the function, or else on its class or module.

    A test that takes no cell has none, even if its class or module is marked.

    Raises:
        pytest.UsageError: two markers are in one place, or a marked test takes no cell.
    """
    test = metafunc.definition
    marks = list(test.iter_markers_with_node(MARKER))
    if not marks or (CELL not in metafunc.fixturenames and marks[0][0] is not test):
        return None
    if CELL not in metafunc.fixturenames:
        raise pytest.UsageError(
            f"{test.nodeid}: expected an argument `cell` or `parity` but got none in a test with "
            f"{MARKER}; add one (`precision_cell`, if `cell` is a fixture of yours), or "
            "drop the marker"
        )
    closest = [mark for node, mark in marks if node is marks[0][0]]
    if len(closest) > 1:
        raise pytest.UsageError(
            f"{test.nodeid}: expected one marker {MARKER} but got {len(closest)} in one place; "
            "write all axes into one"
        )
    return closest[0]


def out_of_reach(items: Iterable[pytest.Item]) -> list[str]:
    """Return an error for each unittest method that has the marker for matrix tests."""
    return [
        f"{item.nodeid}: expected a function or method of pytest's own but got a method of "
        f"unittest.TestCase, which cannot have {MARKER}; move it out of the class"
        for item in items
        if isinstance(item, pytest.Function)
        and not hasattr(item, "callspec")
        and any(mark.name == MARKER for mark in item.own_markers)
    ]
