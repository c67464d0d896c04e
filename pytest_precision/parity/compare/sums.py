"""Compare a step's losses by their sum where the two sides have different numbers of them.

What a loop calls backward on adds up to what it minimizes, in however many microbatches. The order
of additions differs, so that no sum is equal bit for bit: only a tolerance can compare it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import torch
from torch import Tensor

from pytest_precision.engine.kinds import KINDS
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.logical_tensor import LogicalTensor
from pytest_precision.parity.compare.pairs import Pair

SUM = "microbatches (sum)"
"""Name of the sum, which a pattern of the names of losses fits as well."""

SMALLEST_LOSS = 64 * 2.0**-23
"""What the roundings of a few terms of about one, in fp32, add up to."""


class SummedLosses:
    """Puts one pair of sums in the place of a step's losses whose numbers differ.

    Args:
        criteria: how equal two tensors must be.
    """

    def __init__(self, criteria: Criteria) -> None:
        self._criteria = criteria
        self._compared: dict[str, tuple[int, int]] = {}

    def of(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """Yield the pairs of one moment, of which those of each kind are next to each other."""
        for kind, pairs_of_kind in groupby(pairs, key=lambda pair: pair.kind):
            if kind not in KINDS or not KINDS[kind].summed:
                yield from pairs_of_kind
                continue
            several = [*pairs_of_kind]
            for rank in dict.fromkeys(pair.rank for pair in several):
                yield from self._of_rank([pair for pair in several if pair.rank == rank])

    def left_out(self) -> dict[str, str]:
        """Return the kinds of which only sums were compared, each with the reason."""
        return {
            f"{kind} of each microbatch": (
                f"{ours} here, {theirs} in the reference; their sum was compared instead"
            )
            for kind, (ours, theirs) in self._compared.items()
        }

    def _of_rank(self, pairs: Sequence[Pair]) -> Sequence[Pair]:
        ours = [pair.candidate for pair in pairs if pair.candidate is not None]
        theirs = [pair.reference for pair in pairs if pair.reference is not None]
        if len(ours) == len(theirs) or not all(map(self._tolerates, pairs)):
            return pairs
        sums = _sum(ours), _sum(theirs)
        if None in sums:
            return pairs
        self._compared.setdefault(pairs[0].kind, (len(ours), len(theirs)))
        return [replace(pairs[0], name=SUM, candidate=sums[0], reference=sums[1])]

    def _tolerates(self, pair: Pair) -> bool:
        return self._criteria.of_tensor(pair.kind, pair.name).criterion.tolerates


def _sum(parts: Sequence[LogicalTensor]) -> LogicalTensor | None:
    """Return the sum of numbers, rounded once to their dtype; None if one of them is not known."""
    numbers = [part.tensor for part in parts]
    if not parts or any(number is None or number.numel() != 1 for number in numbers):
        return None
    tensors = [number for number in numbers if number is not None]
    total = torch.stack([number.double().reshape(()) for number in tensors]).sum()
    pieces = tuple(piece for part in parts for piece in part.pieces)
    return LogicalTensor(parts[0].trace, pieces, joined=total.to(tensors[0].dtype))


def is_rounding(loss: Tensor) -> bool:
    """Return whether a loss is zero but for the rounding of terms of about one.

    There are few such numbers, and a loss has some of them again and again.
    """
    return bool(loss.abs().max() <= SMALLEST_LOSS)
