"""Attributes that reports carry from the process that ran a test to the controller."""

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
    raised: Sequence[int] = (),
    number: int = 0,
    total: int = 0,
    unread: Sequence[str] = (),
) -> None:
    """Put a cell and its verdicts on one report, and their JUnit properties on the item.

    Call this for the report of every phase: a skipped or broken fixture ends a test before its
    call, and JUnit reads the properties of the last report.

    Args:
        report: report of any phase of `item`; it gets `precision_cell` and `precision`.
        item: the test; its `precision.` properties of an earlier run are replaced.
        axes: axis name to value of the cell.
        verdicts: all verdicts of this run of the test so far, as `Verdict.as_dict()`.
        raised: positions of the verdicts whose errors have ended the phase.
        number: position of the cell in the matrix of its test, which orders rows and columns.
        total: number of matrix cells in this session; 0 if unknown.
        unread: axes of the user's own that nothing has read so far.
    """
    # pytest-rerunfailures counts the runs of an item, this one among them.
    reruns = getattr(item, "execution_count", 1) - 1
    # Only builtins: any other type on a report ends a whole xdist run with an internal error.
    extra: dict[str, Any] = {
        "precision_cell": {
            "test": test_of(item.nodeid),
            "axes": dict(axes),
            "number": number,
            "total": total,
            "unread": list(unread),
        },
        "precision": [dict(verdict) for verdict in verdicts],
        "precision_raised": list(raised),
    }
    vars(report).update(extra)
    others = [
        entry for entry in item.user_properties if not entry[0].startswith(junit.PROPERTY_PREFIX)
    ]
    item.user_properties[:] = [*others, *junit.properties(axes, verdicts, reruns)]
    report.user_properties = list(item.user_properties)


def test_of(nodeid: str) -> str:
    """Return a node id without parameters; a bracket in the path does not start any."""
    path, separator, name = nodeid.partition("::")
    return path + separator + name.partition("[")[0]
