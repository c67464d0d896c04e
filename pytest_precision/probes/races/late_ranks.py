"""Run a candidate with one of its ranks late, to find races: its bits must not change by that."""

from __future__ import annotations

from pytest_precision.check.case import Case
from pytest_precision.check.gate import gate
from pytest_precision.errors import SideFailed
from pytest_precision.matrix.cell import Cell
from pytest_precision.parity.compare.differing import Finding
from pytest_precision.parity.compare.divergences import differs
from pytest_precision.parity.explain import wording
from pytest_precision.parity.verdict import Ruling
from pytest_precision.probes.races.perturb.delays import late_rank
from pytest_precision.recorders.variant import Variant


@gate
def races(case: Case) -> Ruling | None:
    """Fail the check if the candidate's bits change when one of its ranks is late."""
    cell = case.candidate.cell
    runs = case.terms.jitter
    sizes = {segment.world_size for segment in cell.segments}
    if not can_race(cell):
        return None
    for number in range(1, runs + 1):
        late = " or ".join(f"{late_rank(number, size)}" for size in sorted(sizes))
        late = f"with rank {late} late in run {number} of {runs}"
        try:
            finding = _race(case, number)
        except SideFailed as failed:
            reason = f"race: {late}, {failed.reason}"
            return Ruling(outcome="fail", reason=reason, details=tuple(failed.details))
        if finding is not None:
            # Only here, so that a check that passes does not import what explains one that fails.
            from pytest_precision.parity.explain.locate import failed_at, what_differs

            lines = wording.statistics_lines(finding, "without delays")
            return failed_at(finding, f"race: {what_differs(finding)} {late}", lines)
    return None


def can_race(cell: Cell) -> bool:
    """Return whether a race is possible: with several ranks, or with a GPU and its streams."""
    return cell.device != "cpu" or any(segment.world_size > 1 for segment in cell.segments)


def _race(case: Case, delays: int) -> Finding | None:
    """Return the first tensor that changes when one rank is delayed; None if none does.

    First, a run is observed where its steps end, since any other look waits for the device and may
    heal the race. If that differs, another is looked at after each phase, to see where it starts.
    """
    finding = _differs(case, delays, ends_only=True)
    return None if finding is None else _differs(case, delays) or finding


def _differs(case: Case, delays: int, *, ends_only: bool = False) -> Finding | None:
    """Run the candidate again with these delays; return the first tensor that differs or None."""
    assert case.again is not None
    repeated_recording = case.again.ours(case.window, Variant(delays=delays, ends_only=ends_only))
    return differs(repeated_recording, case.candidate)
