"""Run a candidate again to find races: its bits must not change from one run to the next."""

from __future__ import annotations

from pytest_precision.check.case import Case
from pytest_precision.check.gate import gate
from pytest_precision.errors import SideFailed
from pytest_precision.matrix.cell import Cell
from pytest_precision.parity.compare.bounds import Bitwise
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.divergences import Finding, Tally, compare_pair
from pytest_precision.parity.compare.pairs import Pair, align
from pytest_precision.parity.explain import wording
from pytest_precision.parity.verdict import Ruling
from pytest_precision.recorders.perturb.delays import late_rank
from pytest_precision.trace.recording import Recording


def unrepeatable(case: Case) -> str:
    """Run a failing candidate again; say in words how that run differs, empty if it does not.

    A race, memory that nobody initialised and an order that threads decide look like any other
    divergence in one run.

    Returns:
        The end of a first line; nothing if all bytes are the same, or if no second run can be made.
    """
    try:
        found = _differs(case)
    except SideFailed as failed:
        return f"; not repeatable: in a second run {failed.reason}"
    if found is None:
        return ""
    return f"; not repeatable: {what_differs(found)} in a second run of the candidate"


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
            found = _race(case, number)
        except SideFailed as failed:
            reason = f"race: {late}, {failed.reason}"
            return Ruling(outcome="fail", reason=reason, details=tuple(failed.details))
        if found is not None:
            # Only here, so that a check that passes does not import what explains one that fails.
            from pytest_precision.parity.explain.locate import failed_at

            lines = wording.statistics_lines(found, "without delays")
            return failed_at(found, f"race: {what_differs(found)} {late}", lines)
    return None


def can_race(cell: Cell) -> bool:
    """Return whether a race is possible: with several ranks, or with a GPU and its streams."""
    return cell.device != "cpu" or any(segment.world_size > 1 for segment in cell.segments)


def _race(case: Case, delays: int) -> Finding | None:
    """Return the first tensor that changes when one rank is delayed; None if none does.

    First, a run is observed where its steps end, since any other look waits for the device and may
    heal the race. If that differs, another is looked at after each phase, to see where it starts.
    """
    found = _differs(case, delays, ends_only=True)
    return None if found is None else _differs(case, delays) or found


def _differs(case: Case, delays: int = 0, *, ends_only: bool = False) -> Finding | None:
    """Return the first tensor that differs when the candidate runs again; None if none does."""
    again = case.candidate_again(delays, ends_only=ends_only)
    return None if again is None else differs(again, case.candidate)


def differs(again: Recording, first: Recording, criteria: Criteria | None = None) -> Finding | None:
    """Return the first tensor whose bits differ between two runs; None if none does.

    Args:
        again: one run.
        first: the other.
        criteria: those that leave tensors out; without them, all are compared.
    """
    looked_at = {*again.trace.moments}
    for moment in (moment for moment in first.trace.moments if moment in looked_at):
        for pair in align(again.trace, first.trace, (moment, moment)):
            if criteria and criteria.of_tensor(pair.kind, pair.name).criterion.left_out:
                continue
            if not _same(pair):
                tally = Tally()
                compare_pair(pair, Bitwise(), tally)
                return tally.findings[0]
    return None


def _same(pair: Pair) -> bool:
    """Return whether each rank holds the same bytes of a tensor in both runs."""
    if pair.candidate is None or pair.reference is None:
        return False
    again = pair.candidate
    first = pair.reference
    return len(again.pieces) == len(first.pieces) and all(
        ours.dtype == theirs.dtype and again.trace.same_bytes(ours, first.trace, theirs)
        for ours, theirs in zip(again.pieces, first.pieces, strict=True)
    )


def what_differs(found: Finding) -> str:
    """Describe in words which tensor differs, and at which step and phase."""
    pair = found.pair
    return f"{pair.kind} of {pair.name} differs {wording.when(pair.moment)}"
