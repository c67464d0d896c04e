"""What each side shows to be wrong by itself, as its ranks have found it."""

from __future__ import annotations

from pytest_precision.parity.recorded_case import RecordedCase
from pytest_precision.trace.judged_log import JudgedLog, Remark


def judged_alone(case: RecordedCase) -> dict[Remark, list[str]]:
    """Return what is found in the sides, with the names of the sides, unless a test allows it."""
    sides: dict[Remark, list[str]] = {}
    for side in case.judged:
        for remark in side.log(JudgedLog).remarks:
            if case.exempt.judges(remark.kind, ""):
                sides.setdefault(remark, []).append(side.name)
    return sides


def noted_alone(case: RecordedCase) -> list[str]:
    """Return what is found in the sides that a check does not fail by, in words."""
    return [
        f"{remark.words} in {' and '.join(names)}"
        for remark, names in judged_alone(case).items()
        if not remark.fails
    ]
