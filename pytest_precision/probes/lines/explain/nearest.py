"""Find the other side's operation whose result is nearest to that of an operation of a rank."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from pytest_precision.probes.lines.explain.counterparts import SUMS
from pytest_precision.probes.lines.operations import LoggedOperation, OperationLog


class Nearest:
    """Operations of the reference, by what they make and where.

    Args:
        logs: of the reference's ranks.
    """

    def __init__(self, logs: Sequence[OperationLog]) -> None:
        self._by_place: dict[object, list[LoggedOperation]] = defaultdict(list)
        for operation in (operation for log in logs for operation in log.operations):
            if _has_sketch(operation):
                self._by_place[_place(operation)].append(operation)
                self._by_place[_made(operation)].append(operation)

    def of(self, operation: LoggedOperation) -> LoggedOperation | None:
        """Return the reference's operation whose result is nearest to that of a rank's operation.

        What a rank adds up alone is a part of a sum, which the reference makes as a whole.
        """
        if not _has_sketch(operation) or (operation.base in SUMS and operation.backward):
            return None
        key = _made(operation) if operation.is_collective else _place(operation)
        (mine,) = operation.sketches
        return min(
            self._by_place.get(key, ()),
            key=lambda other: math.dist(mine, other.sketches[0]),
            default=None,
        )


def _has_sketch(operation: LoggedOperation) -> bool:
    return len(operation.results) == len(operation.sketches) == 1 and bool(operation.sketches[0])


def _place(operation: LoggedOperation) -> object:
    return operation.module, operation.backward, operation.base, operation.results[0].shape


def _made(operation: LoggedOperation) -> object:
    return operation.results[0].shape, operation.results[0].dtype
