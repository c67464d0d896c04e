"""What each side shows to be wrong by itself, as its ranks have found it."""

from __future__ import annotations

from pytest_precision.check.case import Case
from pytest_precision.check.gate import failed, gate
from pytest_precision.parity.recorded_case import RecordedCase
from pytest_precision.parity.verdict import Ruling
from pytest_precision.probes.by_itself.judged_log import JudgedLog, Remark
from pytest_precision.probes.by_itself.loaded_average import loaded_average_lines
from pytest_precision.trace.moment import INIT
from pytest_precision.trace.reader import Trace

SCHEDULES = "policy"
"""The kind that shows schedulers, once they have moved."""

STEPS_OF_SCHEDULER = "last_epoch of "
"""Begins the name of a scheduler's count."""


def judged_alone(case: RecordedCase) -> dict[Remark, list[str]]:
    """Return the findings that the test does not allow, with the names of their sides."""
    sides: dict[Remark, list[str]] = {}
    for side in case.judged:
        for remark in side.log(JudgedLog).remarks:
            if case.exempt.judges(remark.kind, ""):
                sides.setdefault(remark, []).append(side.name)
    return sides


@gate
def by_itself(case: Case) -> Ruling | None:
    """Fail the check if a run shows by itself what is wrong whatever it trains."""
    for remark, names in judged_alone(case).items():
        if remark.fails:
            who = "both sides" if len(names) > 1 else f"the {names[0]}"
            advice = (
                f"If that is meant, oracle={{{remark.kind!r}: unchecked(reason=...)}} allows it."
            )
            return failed(f"{remark.words} in {who}", [advice])
    return None


def explained_alone(case: RecordedCase, diagnosis: object) -> list[str]:
    """Return lines on errors that one side shows by itself, and on loaded weight averages."""
    lines = [
        f"In the {names[0]}, {remark.words}"
        for remark, names in judged_alone(case.whole).items()
        if remark.fails and len(names) == 1
    ]
    return [*lines, *loaded_average_lines(case)]


def noted_alone(case: RecordedCase) -> list[str]:
    """Return the findings for which a check does not fail, in words."""
    notes = {
        remark.words: names for remark, names in judged_alone(case).items() if not remark.fails
    }
    for side in case.judged:
        for schedule in unmoved_schedules(side.trace):
            words = f"{schedule} has not stepped since the start"
            notes.setdefault(words, []).append(side.name)
    return [f"{words} in {' and '.join(names)}" for words, names in notes.items()]


def unmoved_schedules(trace: Trace) -> list[str]:
    """Return the schedulers whose count is shown at the start, and never as it moves."""
    later = (moment for moment in trace.moments if moment != INIT)
    shown = {entry.name for moment in later for entry in trace.entries(moment, {SCHEDULES})}
    counts = {name for kind, name, _ in trace.starts() if kind == SCHEDULES} - shown
    return sorted(
        name.removeprefix(STEPS_OF_SCHEDULER)
        for name in counts
        if name.startswith(STEPS_OF_SCHEDULER)
    )
