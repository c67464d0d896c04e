"""Step ends: where the train steps of a loop begin and end, and what is written there.

A step is what lies between two updates, and its end is seen at the start of the next one: a
scheduler, a second optimizer or a clip that comes too late belongs to the step before. So the step
buffer keeps what is overwritten by then, and the whole step is written at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.optim import Optimizer

from pytest_precision.errors import expected_but_got
from pytest_precision.recorders.scripts.edge import Edge
from pytest_precision.recorders.scripts.loop_schedule import LoopSchedule
from pytest_precision.recorders.scripts.loop_trace import LoopTrace
from pytest_precision.recorders.scripts.step_buffer import StepBuffer


@dataclass
class RunningStep:
    """What a step of a loop has done, and whether that makes it over.

    Attributes:
        begun: whether anything of it was seen.
        clipped: whether gradients were clipped.
        clipped_late: whether that was after an update.
        given_up: whether the loop has left its update out, as after an overflow.
        running: optimizers whose step has begun and has not returned; one may run another one.
        met: those of them that are about to read gradients, which a closure has computed.
        updated: optimizers whose step has returned, in this order.
        evaluated: modules that were called without gradients after an update.
    """

    begun: bool = False
    clipped: bool = False
    clipped_late: bool = False
    given_up: bool = False
    running: list[Optimizer] = field(default_factory=list)
    met: list[Optimizer] = field(default_factory=list)
    updated: list[Optimizer] = field(default_factory=list)
    evaluated: list[nn.Module] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Return whether it has made its update, unless an optimizer is in the middle of one."""
        return bool(self.updated and not self.running) or self.given_up

    @property
    def phase(self) -> str:
        """Return the phase to which `record.see` adds a tensor now."""
        if self.updated:
            return "optimizer_step"
        return "clip_grads" if self.clipped or self.running else "forward_backward"

    def clip(self) -> None:
        """Note that gradients are clipped."""
        self.clipped = True
        self.clipped_late = bool(self.updated) and not self.running

    def start(self, optimizer: Optimizer) -> None:
        """Note that the step of an optimizer begins."""
        self.running.append(optimizer)
        self.clipped_late = self.given_up = False

    def end(self, optimizer: Optimizer) -> None:
        """Note that the step of an optimizer has returned."""
        self.running = [one for one in self.running if one is not optimizer]
        self.met = [one for one in self.met if one is not optimizer]
        self.updated.append(optimizer)

    def has_updated(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer has made an update in this step."""
        return any(one is optimizer for one in self.updated)

    def next(self) -> RunningStep:
        """Return the step after it; an optimizer that runs goes on in that."""
        return RunningStep(running=self.running, met=self.met)


TIMES_THE_BACKWARDS = 4
"""A step that is to be skipped ends within so many times the backwards of the longest before it."""

LEAST_BACKWARDS = 16
"""Backwards that the longest step before is taken to have at least."""


class Overflow:
    """Counts the backwards of each step, and makes them overflow in a `skip`.

    Args:
        schedule: says whether the step is to be skipped.
        trace: says which rank this is.

    Attributes:
        backwards: how many the step has made so far.
    """

    def __init__(self, schedule: LoopSchedule, trace: LoopTrace) -> None:
        self._schedule = schedule
        self._trace = trace
        self.backwards = 0
        self._most = LEAST_BACKWARDS

    def backward(self, loss: Tensor) -> Tensor:
        """Return what a backward starts from: infinity on the last rank of a step to be skipped.

        Raises:
            RuntimeError: such a step does not end.
        """
        self.backwards += 1
        if self._schedule.operation != "skip":
            return loss
        if self.backwards > TIMES_THE_BACKWARDS * self._most:
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


class StopRecording(BaseException):
    """All steps are recorded; raised where the loop starts the next one.

    No `Exception`, so that a loop that goes on after errors ends all the same.
    """


class StepEnds:
    """Begins and ends the steps of a loop.

    Args:
        buffer: what the running step shows.
        trace: writes it.
        schedule: what the loop is to make; it is ended after that.

    Attributes:
        now: what the loop has done in the running step.
        edge: writes what lies between two steps.
        overflow: has a step overflow that is to be skipped.
        violations: what the loop does that no loop should, in words.
        ended: is called with the index of the operation when a step is over.
    """

    def __init__(self, buffer: StepBuffer, trace: LoopTrace, schedule: LoopSchedule) -> None:
        self._buffer = buffer
        self._objects = buffer.reader.objects
        self._schedule = schedule
        self.now = RunningStep()
        self.edge = Edge(buffer.reader, trace, schedule)
        self.overflow = Overflow(schedule, trace)
        self.violations: dict[str, None] = {}
        self.ended: Callable[[int], object] = lambda op: None
        self._told_late = False

    def begin(self) -> bool:
        """Begin a step unless one is running; return whether this has."""
        if self.now.begun:
            return False
        self._buffer.begin()
        self.now.begun = True
        if self._buffer.fresh and not self.now.running:
            self.edge.repeat(self._buffer.begin_anew)
        return True

    def go_on(self) -> None:
        """Begin the next step for good.

        Raises:
            StopRecording: there is none.
        """
        self.edge.leave()
        if self._schedule.operation is None:
            raise StopRecording

    def end_if_over(self) -> None:
        """End the step if it has made its update."""
        if self.now.is_over:
            self._end()

    def finish(self) -> None:
        """End the last step, if the loop has ended by itself after it."""
        if self.now.updated or self.now.given_up:
            self._end()
        else:
            self.edge.read_anew()

    def evaluate(self, module: nn.Module) -> None:
        """Note a call without gradients: after an update, when the step is over."""
        if self.now.updated:
            self.now.evaluated.append(module)
        else:
            self._objects.copies.call(module)

    def _end(self) -> None:
        self._buffer.settle(())
        if self._buffer.fresh:
            self.edge.write_start()
        self._objects.end_step()
        op = self._schedule.op
        operation = str(self._schedule.operation)
        self._schedule.advance()
        if self.now.clipped_late and not self._told_late:
            self._told_late = True
            late = f"gradients were clipped after the update of step {self._schedule.done}"
            self.violations[late] = None
        self.violations |= dict.fromkeys(self.edge.write_step(op, operation, self._buffer))
        evaluated = self.now.evaluated
        self.now = self.now.next()
        self.overflow.end_step()
        self._buffer.end(self._schedule.done)
        for module in evaluated:
            self._objects.copies.call(module)
        self.ended(op)
