"""Tell what is only a part of a sum that the other side makes as a whole.

The product with a shard of a weight is such a part until ranks add it up, and so are the loss and
the gradients of a smaller microbatch until they are accumulated. They are as they should be, though
the other side has no such value. What an update reads of them, no collective has added up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_precision.probes.lines.explain.nearest import Nearest
from pytest_precision.probes.lines.operations import LoggedOperation, OperationLog

NEAR = 0.02
"""Relative error up to which a sum over ranks is what the other side makes, also in bf16."""


class PartsOfSums:
    """The memory of a run that holds parts of sums, operation by operation.

    Args:
        over_ranks: whether other ranks have the rest of a sum, so that collectives add it up;
            otherwise other microbatches have it.
    """

    def __init__(self, *, over_ranks: bool) -> None:
        self._over_ranks = over_ranks
        self._held: dict[int, LoggedOperation] = {}

    def made_by(self, operation: LoggedOperation) -> LoggedOperation | None:
        """Return what has made the first part of a sum that an operation reads; None for none."""
        read = (
            self._held[value.storage] for value in operation.read if value.storage in self._held
        )
        return next(read, None)

    def note(self, mine: LoggedOperation, other: LoggedOperation | None) -> bool:
        """Return whether the results of an operation are parts of sums, and remember it.

        Args:
            mine: the operation.
            other: that of the other side in its place, if there is one. What it makes is the sum if
                it has the same shapes, and what it reads has other ones.
        """
        maker = None if mine.is_collective or self._adds_up(mine) else self.made_by(mine)
        if maker is None and not mine.is_collective and _is_of_less(mine, other):
            maker = mine
        for value in mine.results:
            self._held.pop(value.storage, None)
            if maker is not None:
                self._held[value.storage] = maker
        return maker is not None

    def _adds_up(self, mine: LoggedOperation) -> bool:
        """Return whether an operation accumulates gradients of microbatches."""
        return not self._over_ranks and mine.base == "add" and len(mine.read) > 1


def _is_of_less(mine: LoggedOperation, other: LoggedOperation | None) -> bool:
    if other is None:
        return False
    inputs, results = (
        [[value.shape for value in values] for values in both]
        for both in ((mine.read, other.read), (mine.results, other.results))
    )
    return inputs[0] != inputs[1] and results[0] == results[1]


def not_added_up(
    candidate: Sequence[OperationLog], reference: Sequence[OperationLog]
) -> tuple[int, LoggedOperation] | None:
    """Return the rank and operation whose part of a sum an update reads; None if there is none.

    Only what all ranks together make as the reference does, within `NEAR`, is known to be a sum.

    Args:
        candidate: the logs of its ranks, which call the same operations in the same order.
        reference: the logs of the reference's ranks, of which there are fewer.
    """
    if len(candidate) <= len(reference):
        return None
    nearest = Nearest(reference)
    for rank, log in enumerate(candidate):
        parts = PartsOfSums(over_ranks=True)
        for number, operation in enumerate(log.operations):
            maker = parts.made_by(operation)
            if maker is not None and number >= log.first_update:
                return rank, maker
            parts.note(operation, _sum_over_ranks(number, operation, candidate, nearest))
    return None


def _sum_over_ranks(
    number: int, mine: LoggedOperation, logs: Sequence[OperationLog], nearest: Nearest
) -> LoggedOperation | None:
    """Return the reference's operation that makes the sum of what all ranks make, if there is one.

    Sketches are projections, so that theirs add up as the values do.
    """
    if any(number >= len(log.operations) for log in logs):
        return None
    calls = [log.operations[number] for log in logs]
    alike = all((call.name, call.module) == (mine.name, mine.module) for call in calls)
    if not alike or any(len(call.sketches) != 1 for call in calls):
        return None
    summed = tuple(map(sum, zip(*(call.sketches[0] for call in calls), strict=False)))
    other = nearest.of(mine._replace(sketches=(summed,)))
    if other is None:
        return None
    size = math.hypot(*other.sketches[0])
    return other if math.dist(summed, other.sketches[0]) <= NEAR * size else None
