"""Tell what has not moved since before the first update from what a side does not have.

Averages, counters of schedulers and other Python state are shown only once they have changed. A
side that never advances one shows as little of it as a side without it, and only what its trace
says of the start tells the two apart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias

from pytest_precision.engine.kinds import KINDS, is_shown_once_moved
from pytest_precision.matrix.tensor_key import TensorKey
from pytest_precision.parity.compare.pairs import Pair
from pytest_precision.trace.reader import Trace

_NUMBER = re.compile(r" \d+$")
"""What tells apart several objects of one class, in the order in which they were seen to move."""

StartKey: TypeAlias = tuple[str, str, int]
"""Kind, name and rank."""


class Starts:
    """What both sides had before the first update, of what is shown only once it has changed.

    Args:
        candidate: one side.
        reference: the other.
    """

    def __init__(self, candidate: Trace, reference: Trace) -> None:
        self._traces = candidate, reference
        self._starts = candidate.starts(), reference.starts()
        self._numbers = [Counter(map(_alike, starts.items())) for starts in self._starts]

    def agree(self, pair: Pair) -> bool:
        """Return whether both sides have a pair's tensor, and had equal ones at first.

        Of several objects that began alike, such as an average and a frozen copy, a side that lacks
        one must have as many as the other side, or it has dropped one of them.
        """
        ours, theirs = self._both(pair)
        if not is_shown_once_moved(pair.kind) or not ours or ours != theirs:
            return False
        our_number, their_number = (
            numbers[_alike((_place(pair), ours))] for numbers in self._numbers
        )
        lacks = pair.candidate is None, pair.reference is None
        return not (lacks[0] and our_number < their_number) and not (
            lacks[1] and their_number < our_number
        )

    def differ(self, pair: Pair) -> bool:
        """Return whether both sides had a pair's tensor at first, with other values."""
        ours, theirs = self._both(pair)
        return ours is not None and theirs is not None and ours != theirs

    def is_at_start(self, pair: Pair) -> bool:
        """Return whether the only side that shows a tensor shows it as it was at first."""
        shown = pair.candidate or pair.reference
        assert shown is not None
        start = self._both(pair)[pair.candidate is None]
        return shown.trace.described(shown.pieces[0]) == start

    def unmoved(self) -> Iterator[tuple[str, str]]:
        """Yield kind and owner of tensors, such as an average's, that neither side has moved."""
        shown = {
            (kind, name)
            for trace in self._traces
            for kind, names in trace.dtypes().items()
            for name in names
        }
        owners = (
            (kind, TensorKey.of(kind, name).owner)
            for kind, name, _ in self._starts[0].keys() & self._starts[1].keys()
            if KINDS[kind].optional == "tensor" and (kind, name) not in shown
        )
        yield from sorted(set(owners))

    def _both(self, pair: Pair) -> list[str | None]:
        return [starts.get(_place(pair)) for starts in self._starts]


def _place(pair: Pair) -> StartKey:
    shown = pair.candidate or pair.reference
    assert shown is not None
    return pair.kind, pair.name, shown.pieces[0].rank


def _alike(start: tuple[StartKey, str]) -> tuple[str, TensorKey, int, str]:
    """Return a key of equal first values, which ignores numbers in the names of objects."""
    (kind, name, rank), value = start
    key = TensorKey.of(kind, name)
    return kind, key._replace(owner=_NUMBER.sub("", key.owner)), rank, value
