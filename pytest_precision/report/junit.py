"""JUnit: a cell and its worst verdict as properties of the test case, prefixed `precision.`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_precision.matrix.cell import AxisValue
from pytest_precision.report.status import worst

PREFIX = "precision."

_FIELDS = (
    "outcome",
    "reason",
    "candidate",
    "reference",
    "workload",
    "criterion",
    "observations",
    "bytes",
)


def properties(
    axes: Mapping[str, AxisValue], verdicts: Sequence[Mapping[str, Any]]
) -> list[tuple[str, str]]:
    """The properties of one test, for `item.user_properties`; they survive xdist.

    A test case has one set of them. Where a test checks more than once it describes the worst
    verdict, the first of them if several are as bad, and `precision.checks` has their number.

    Args:
        axes: of the cell.
        verdicts: as `Verdict.as_dict()`, none where the test ended without.
    """
    found = [(f"{PREFIX}axis.{name}", str(value)) for name, value in axes.items()]
    if not verdicts:
        return found
    outcome = worst(str(verdict["outcome"]) for verdict in verdicts)
    verdict = next(verdict for verdict in verdicts if verdict["outcome"] == outcome)
    if len(verdicts) > 1:
        found.append((f"{PREFIX}checks", str(len(verdicts))))
    found += [(PREFIX + name, str(verdict[name])) for name in _FIELDS if verdict[name] != ""]
    divergence = verdict.get("divergence", {})
    found += [
        (f"{PREFIX}divergence.{name}", str(value))
        for name, value in divergence.items()
        if value is not None
    ]
    return found
