"""Known: the values that the reference made or was given, and what it did with each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property

from pytest_precision.parity.explain.lines.calls import SingleCall, calls
from pytest_precision.trace.operations import OperationLog, Value


class Known:
    """The values of all ranks of the reference.

    Args:
        logs: of its ranks.
    """

    def __init__(self, logs: Sequence[OperationLog]) -> None:
        self.calls: list[SingleCall] = []
        self.given: dict[str, str] = {}
        self.left: set[str] = set()
        self.readers: dict[str, list[SingleCall]] = defaultdict(list)
        self.makers: dict[str, list[SingleCall]] = defaultdict(list)
        self._pieces: set[str] = set()
        for log in logs:
            self._take(log)

    def _take(self, log: OperationLog) -> None:
        self.given |= {value.digest: str(held) for held, value in log.given.items()}
        self.left |= {value.digest for value in log.left.values()}
        for value in (*log.given.values(), *log.left.values()):
            self._pieces |= {*value.pieces}
        for call in calls(log.operations):
            self.calls.append(call)
            for value in call.read:
                self.readers[value.digest].append(call)
                self._pieces |= {*value.pieces}
            for value in call.results:
                self.makers[value.digest].append(call)
                self._pieces |= {*value.pieces}

    def __contains__(self, value: Value) -> bool:
        parts = value.pieces
        return self._has(value.digest) or (bool(parts) and all(map(self._has, parts)))

    def _has(self, digest: str) -> bool:
        return (
            digest in self.makers
            or digest in self.readers
            or digest in self.given
            or digest in self.left
            or digest in self._pieces
        )

    @cached_property
    def bases(self) -> frozenset[str]:
        """Return the base names of all operations."""
        return frozenset(call.base for call in self.calls)
