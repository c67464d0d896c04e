"""Attach the results of checks to pytest's reports, for the controller and for JUnit files.

The properties are a cell and its worst verdict, prefixed `precision.`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_precision.matrix.cell import AxisValue
from pytest_precision.parity.plain_data import as_plain
from pytest_precision.report.status import worst_status

if TYPE_CHECKING:
    import pytest


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
    """Attach a test's axes and check results to its report, and JUnit properties to the item.

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
    plain_axes = as_plain(axes)
    # Only builtins: any other type on a report ends a whole xdist run with an internal error.
    extra: dict[str, Any] = {
        "precision_cell": {
            "test": test_of(item.nodeid),
            "axes": plain_axes,
            "number": number,
            "total": total,
            "unread": list(unread),
        },
        "precision": [dict(verdict) for verdict in verdicts],
        "precision_raised": list(raised),
    }
    vars(report).update(extra)
    others = [entry for entry in item.user_properties if not entry[0].startswith(PROPERTY_PREFIX)]
    item.user_properties[:] = [*others, *properties(plain_axes, verdicts, reruns)]
    report.user_properties = list(item.user_properties)


def test_of(nodeid: str) -> str:
    """Return a node id without its parameters; brackets in the path are kept."""
    path, separator, name = nodeid.partition("::")
    return path + separator + name.partition("[")[0]


PROPERTY_PREFIX = "precision."

_FIELDS = (
    "outcome",
    "status",
    "gate",
    "reason",
    "candidate",
    "reference",
    "workload",
    "criterion",
    "observations",
    "bytes",
)

_CULPRIT = ("text", "kind", "operation", "function", "file", "line", "module", "rank")
"""What of a culprit fits a property; the rest is in report.json."""


def properties(
    axes: Mapping[str, AxisValue], verdicts: Sequence[Mapping[str, Any]], reruns: int = 0
) -> list[tuple[str, str]]:
    """Return the JUnit properties of one test for `item.user_properties`, which survive xdist.

    A test case has one set of properties. If a test makes several checks, they describe the first
    of its worst verdicts, and `precision.checks` has the number of checks.

    Args:
        axes: axis name to value of the cell, as plain data.
        verdicts: verdicts as `Verdict.as_dict()`; none if the test ended without a check.
        reruns: how often the test failed and was run again before this run.
    """
    test_properties = [
        (f"{PROPERTY_PREFIX}axis.{name}", str(value)) for name, value in axes.items()
    ]
    if reruns:
        test_properties.append((f"{PROPERTY_PREFIX}reruns", str(reruns)))
    if not verdicts:
        return test_properties
    status = worst_status(str(verdict["status"]) for verdict in verdicts)
    verdict = next(verdict for verdict in verdicts if verdict["status"] == status)
    if len(verdicts) > 1:
        test_properties.append((f"{PROPERTY_PREFIX}checks", str(len(verdicts))))
    test_properties += [
        (PROPERTY_PREFIX + name, str(verdict[name]))
        for name in _FIELDS
        if verdict.get(name, "") != ""
    ]
    divergence = verdict.get("divergence", {})
    culprit = {name: verdict.get("culprit", {}).get(name) for name in _CULPRIT}
    for group, values in (("divergence", divergence), ("culprit", culprit)):
        test_properties += [
            (f"{PROPERTY_PREFIX}{group}.{name}", str(value))
            for name, value in values.items()
            if value is not None
        ]
    return test_properties
