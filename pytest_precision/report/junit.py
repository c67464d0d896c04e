"""JUnit: a cell and its worst verdict as properties of the test case, prefixed `precision.`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_precision.matrix.cell import AxisValue
from pytest_precision.report.status import worst_status

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
    """Return the properties of one test for `item.user_properties`, which survive xdist.

    A test case has one set of properties. If a test makes several checks, they describe the first
    of its worst verdicts, and `precision.checks` has the number of checks.

    Args:
        axes: axis name to value of the cell.
        verdicts: verdicts as `Verdict.as_dict()`; none if the test ended without a check.
        reruns: how often the test failed and was run again before this run.
    """
    found = [(f"{PROPERTY_PREFIX}axis.{name}", str(value)) for name, value in axes.items()]
    if reruns:
        found.append((f"{PROPERTY_PREFIX}reruns", str(reruns)))
    if not verdicts:
        return found
    status = worst_status(str(verdict["status"]) for verdict in verdicts)
    verdict = next(verdict for verdict in verdicts if verdict["status"] == status)
    if len(verdicts) > 1:
        found.append((f"{PROPERTY_PREFIX}checks", str(len(verdicts))))
    found += [
        (PROPERTY_PREFIX + name, str(verdict[name]))
        for name in _FIELDS
        if verdict.get(name, "") != ""
    ]
    divergence = verdict.get("divergence", {})
    culprit = {name: verdict.get("culprit", {}).get(name) for name in _CULPRIT}
    for group, values in (("divergence", divergence), ("culprit", culprit)):
        found += [
            (f"{PROPERTY_PREFIX}{group}.{name}", str(value))
            for name, value in values.items()
            if value is not None
        ]
    return found
