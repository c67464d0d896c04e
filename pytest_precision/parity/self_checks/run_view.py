"""Shown: what a run shows at its moments, put together, and how much of it was looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from torch import Tensor

from pytest_precision.parity.compare.pairs import assemble
from pytest_precision.parity.self_checks.identities import Claim
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.store import Entry, Trace

Held = Mapping[str, Mapping[str, list[Entry]]]
"""Kind to name to the pieces of all ranks, at one moment."""


class Shown:
    """What one run shows.

    Args:
        trace: of the run.
        checked: counts, per identity, the tensors that were looked at.
    """

    def __init__(self, trace: Trace, checked: Counter[str]) -> None:
        self._trace = trace
        self._checked = checked

    def claim(self, moment: Moment, kind: str, name: str, identity: str) -> Claim:
        """Return a claim, and count it."""
        self._checked[f"{kind} is {identity}"] += 1
        return Claim(moment.step, kind, name, identity)

    def whole(self, entries: Sequence[Entry] | None) -> Tensor | None:
        """Return a tensor put together; None where it is not shown, or its pieces do not fit."""
        return assemble(self._trace, [*entries]).tensor if entries else None

    def same(self, got: Sequence[Entry], other: Sequence[Entry]) -> bool:
        """Return whether pieces that are whole are known to have the same bytes."""
        first = other[0]
        return first.piece == first.shape and all(
            (one.dtype, one.piece) == (first.dtype, first.piece)
            and self._trace.same_bytes(one, self._trace, first)
            for one in (*got, *other[1:])
        )
