"""Index the values in the reference's operation logs: what made each one, and what reads it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from itertools import chain

from pytest_precision.parity.explain.lines.calls import SingleCall, calls
from pytest_precision.trace.operations import Holding, OperationLog, Value, is_zero


class Known:
    """The values in the logs of all ranks of the reference, and the operations on them.

    Args:
        logs: of its ranks.
    """

    def __init__(self, logs: Sequence[OperationLog]) -> None:
        self.calls: list[SingleCall] = []
        self.given: dict[str, str] = {}
        self.left: set[str] = set()
        self.shapes = shapes_of(logs)
        self.readers: dict[str, list[SingleCall]] = defaultdict(list)
        self.makers: dict[str, list[SingleCall]] = defaultdict(list)
        self._pieces: set[str] = set()
        self._wholes: set[str] = set()
        for log in logs:
            self._take(log)

    def _take(self, log: OperationLog) -> None:
        self.given |= {value.digest: str(held) for held, value in log.given.items()}
        self.left |= {value.digest for value in log.left.values()}
        for value in chain(log.given.values(), log.left.values()):
            self._pieces |= {*value.pieces}
        for call in calls(log.operations):
            self.calls.append(call)
            for found, values in ((self.readers, call.read), (self.makers, call.results)):
                for value in values:
                    self._pieces |= {*value.pieces}
                    self._wholes.add(value.digest)
                    for digest in (value.digest, *value.pieces):
                        found[digest].append(call)

    def __contains__(self, value: Value) -> bool:
        parts = [part for part in value.pieces if not is_zero(part)]  # a buffer may be padded
        return self._has(value.digest) or (bool(parts) and all(map(self._has, parts)))

    def has_whole(self, value: Value) -> bool:
        """Return whether the reference has a value as a whole, and not only as part of another."""
        return value.digest in self._wholes or self._holds(value.digest)

    def _has(self, digest: str) -> bool:
        return digest in self._wholes or digest in self._pieces or self._holds(digest)

    def _holds(self, digest: str) -> bool:
        return digest in self.given or digest in self.left

    @cached_property
    def bases(self) -> frozenset[str]:
        """Return the names of all operators that the reference runs, without their overload."""
        return frozenset(call.base for call in self.calls)


def shapes_of(logs: Sequence[OperationLog]) -> dict[Holding, set[tuple[int, ...]]]:
    """Return the shapes that each named tensor has on all ranks of a run."""
    found: dict[Holding, set[tuple[int, ...]]] = defaultdict(set)
    for log in logs:
        for held, value in chain(log.given.items(), log.left.items()):
            found[held].add(value.shape)
    return found
