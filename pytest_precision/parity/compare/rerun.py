"""Compare two runs of one side rank by rank: the first tensor whose bytes are not the same."""

from __future__ import annotations

from pytest_precision.parity.compare.bounds import Bitwise
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.divergences import Finding, Tally, compare_pair
from pytest_precision.parity.compare.pairs import Pair, align
from pytest_precision.trace.recording import Recording


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
