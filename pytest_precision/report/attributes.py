"""Attributes that go with reports, from the process that ran a test to the controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pytest_precision.matrix.cell import AxisValue
from pytest_precision.report import junit


def attach(
    report: pytest.TestReport,
    item: pytest.Item,
    *,
    axes: Mapping[str, AxisValue],
    verdicts: Sequence[Mapping[str, Any]] = (),
    number: int = 0,
    total: int = 0,
) -> None:
    """Put a cell and its verdicts on one report, and their JUnit properties on the item.

    To be called for the report of every phase, because a skipped or broken fixture ends a test
    before its call, and because JUnit reads the properties of the last report.

    Args:
        report: of any phase of `item`; it gets `precision_cell` and `precision`.
        item: the test; its `precision.` properties of an earlier run are replaced.
        axes: of the cell, axis name to value.
        verdicts: all that this run of the test has reached so far, as `Verdict.as_dict()`.
        number: position of the cell in the matrix of its test, which orders rows and columns.
        total: number of matrix cells in this session, 0 where it is unknown.
    """
    # Builtins only: anything else on a report is an internal error of a whole xdist run.
    extra: dict[str, Any] = {
        "precision_cell": {
            "test": test_of(item.nodeid),
            "axes": dict(axes),
            "number": number,
            "total": total,
        },
        "precision": [dict(verdict) for verdict in verdicts],
    }
    vars(report).update(extra)
    others = [entry for entry in item.user_properties if not entry[0].startswith(junit.PREFIX)]
    item.user_properties[:] = [*others, *junit.properties(axes, verdicts)]
    report.user_properties = list(item.user_properties)


def test_of(nodeid: str) -> str:
    """The node id without its parameters; a bracket in the path is no parameter."""
    path, separator, name = nodeid.partition("::")
    return path + separator + name.partition("[")[0]
