"""The train steps, saves and loads that a loop must make, and its position among them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pytest_precision.matrix.sequence import LOADS, STEPS_OF_LOOPS


class LoopSchedule:
    """The operations, such as `save`, that one run of a loop must make before the next load.

    Args:
        operations: those of the whole sequence.
        load: index of the load that the run begins with; -1 for the first run.
        done: number of train steps that are over before it.
        last: number of the train step after which nothing more is recorded.
        stop: index of the operation with which other processes go on; none unless given.

    Attributes:
        load: as given.
        op: index of the operation that the loop is making.
        done: number of train steps that are over.
    """

    def __init__(
        self,
        operations: Sequence[str],
        *,
        load: int = -1,
        done: int = 0,
        last: int = sys.maxsize,
        stop: int | None = None,
    ) -> None:
        self._operations = operations
        self._last = last
        self._stop = len(operations) if stop is None else stop
        later = (op for op, name in enumerate(operations) if op > load and name in LOADS)
        self._end = next(later, len(operations))
        self.load = load
        self.op = load + 1
        self.done = done

    @property
    def operation(self) -> str | None:
        """Return the name of the operation that the loop is making; None at the end."""
        if self.op == self._end:
            return None
        operation = self._operations[self.op]
        return None if operation == "train" and self.done == self._last else operation

    @property
    def loaded(self) -> str | None:
        """Return the load operation with which this run begins; None if training starts anew."""
        return None if self.load < 0 else self._operations[self.load]

    @property
    def ends_trained(self) -> bool:
        """Return whether the sequence is complete, and its last operation a train step."""
        return self.op == len(self._operations) and self._operations[-1] == "train"

    @property
    def asked(self) -> int:
        """Return the number of steps that this run must make, including skipped ones."""
        return _steps(self._operations[self.load + 1 : self._end])

    @property
    def made(self) -> int:
        """Return the number of steps that this run has made, including skipped ones."""
        return _steps(self._operations[self.load + 1 : self.op])

    @property
    def save_after(self) -> int | None:
        """Return after how many steps of this run the loop must save; None for no save."""
        ahead = self._operations[self.load + 1 : self._end]
        return _steps(ahead[: ahead.index("save")]) if "save" in ahead else None

    def advance(self) -> None:
        """Go to the next operation, and count the train step that has just ended."""
        self.done += self._operations[self.op] == "train"
        self.op += 1

    def next_run(self) -> LoopSchedule | None:
        """Return the schedule from the next load on; None if this process makes no further run."""
        if self.op < self._end or self._end == self._stop:
            return None
        return LoopSchedule(
            self._operations, load=self._end, done=self.done, last=self._last, stop=self._stop
        )


def _steps(operations: Sequence[str]) -> int:
    return sum(operation in STEPS_OF_LOOPS for operation in operations)
