"""Overflow: gradients of a step that is to be skipped, as too high a loss scale makes them."""

from __future__ import annotations

import math

from torch import Tensor

from pytest_precision.errors import expected_but_got
from pytest_precision.recorders.scripts.loop_schedule import LoopSchedule
from pytest_precision.recorders.scripts.loop_trace import LoopTrace

MOST, TIMES = 16, 4
"""A step that is to be skipped ends within `TIMES` times the backwards of the longest step before
it, which is taken to have `MOST` at least."""


class Overflow:
    """Counts the backwards of each step, and makes them overflow in a `skip`.

    Args:
        schedule: says whether the step is to be skipped.
        trace: says which rank this is.

    Attributes:
        backwards: how many the step has made so far.
    """

    def __init__(self, schedule: LoopSchedule, trace: LoopTrace) -> None:
        self._schedule, self._trace = schedule, trace
        self.backwards, self._most = 0, MOST

    def backward(self, loss: Tensor) -> Tensor:
        """Return what a backward starts from: infinity on the last rank of a step to be skipped.

        Raises:
            RuntimeError: such a step does not end.
        """
        self.backwards += 1
        if self._schedule.operation != "skip":
            return loss
        if self.backwards > TIMES * self._most:
            raise RuntimeError(
                expected_but_got(
                    "the loop to go on with the next step after an overflow",
                    f"{self.backwards} backwards in the step that overflows, and neither "
                    "clip_grad_norm_ nor GradScaler.step nor an update",
                    "call record.skipped() where the loop leaves the update out",
                )
            )
        rank, size = self._trace.place
        return loss * math.inf if rank == size - 1 else loss

    def end_step(self) -> None:
        """Reset the count of backwards for the next step."""
        self.backwards, self._most = 0, max(self._most, self.backwards)
