"""Decide where a loop's train steps begin and end, and write each finished step.

A step is what lies between two updates, and its end is seen at the start of the next one: a
scheduler, a second optimizer or a clip that comes too late belongs to the step before. So the step
buffer keeps what is overwritten by then, and the whole step is written at once.

Whatever calls the model after an update may be an evaluation, for which other weights take the
place of its own, as averages do, or another mode, until it is over. So what the step has left is
read at the first call, and read anew where the model is called again before a loss goes backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import torch
from torch import Tensor, nn

from pytest_precision._progress import advance
from pytest_precision.engine.engine import STEP_PHASES
from pytest_precision.engine.observation import Observation
from pytest_precision.errors import expected_but_got
from pytest_precision.recorders.scripts.loop_reader import shown_once
from pytest_precision.recorders.scripts.loop_schedule import LoopSchedule
from pytest_precision.recorders.scripts.loop_trace import LoopTrace
from pytest_precision.recorders.scripts.step_buffer import StepBuffer
from pytest_precision.trace.moment import END, INIT, Moment

TIMES_THE_BACKWARDS = 4
"""A step that is to be skipped ends within so many times the backwards of the longest before it."""

LEAST_BACKWARDS = 16
"""Backwards that the longest step before is taken to have at least."""


class StopRecording(BaseException):
    """Raised in a loop that begins a step after the last one to record, in order to end the loop.

    No `Exception`, so that a loop that goes on after errors ends all the same.
    """


class Edge:
    """The interval between two train steps, in which the state after a step may have to be reread.

    What is called of other modules, such as a teacher or the first of several towers, belongs to
    the step that it begins: only where the same model is called again, whatever wraps it, something
    is read anew.
    """

    def __init__(self) -> None:
        self._readings: list[Callable[[], object]] = []
        self._model: nn.Module | None = None
        self._trains = False

    def repeat(self, reading: Callable[[], object]) -> None:
        """Register a function that reads state after a step, in case it has to read again."""
        self._readings.append(reading)

    def reach(self, module: nn.Module, *, trains: bool, begins: bool) -> None:
        """Handle a module call between two steps; reread the state if this call begins a step.

        Args:
            module: it.
            trains: whether gradients are enabled.
            begins: whether the loop calls it, and no other module does.
        """
        if self._model is None:
            self._model = module
            self._trains = trains
        elif trains and self._is_same(module, self._model, begins=begins):
            self._model = module
            self._trains = True
            self.read_anew()

    def begin_in_step(self) -> None:
        """Reread the loop's state, because `optimizer.step` begins a step by running a closure."""
        if self._model is not None and not self._trains:
            self.read_anew()

    def read_anew(self) -> None:
        """Call the registered functions, which read the state between two steps, once more."""
        for reading in self._readings:
            reading()

    def leave(self) -> None:
        """Forget the functions registered to reread the state, as the next step has begun."""
        self._readings.clear()
        self._model = None

    def _is_same(self, module: nn.Module, first_module: nn.Module, *, begins: bool) -> bool:
        """Return whether a call is of the model first called since the last step, wrapped or not.

        Within a forward that trains, the model calls its parts.
        """
        if self._trains:
            return begins and _holds(module, first_module)
        return _holds(module, first_module) or _holds(first_module, module)


def _holds(whole_module: nn.Module, part: nn.Module) -> bool:
    return any(part is module for module in whole_module.modules())


class StepEnds:
    """Decides where a loop's train steps begin and end, and writes each to the trace.

    Args:
        buffer: what the running step shows.
        trace: writes it.
        schedule: what the loop is to make; it is ended after that.
        ended: is called when a step is over and written.

    Attributes:
        edge: has what lies between two steps read anew.
        violations: what the loop does that no loop should, in words.
        settled: is called when what all steps so far have shown can change no more.
    """

    def __init__(
        self,
        buffer: StepBuffer,
        trace: LoopTrace,
        schedule: LoopSchedule,
        ended: Callable[[Moment], object],
    ) -> None:
        self._buffer = buffer
        self._reader = buffer.reader
        self._trace = trace
        self._schedule = schedule
        self.edge = Edge()
        self.settled: Callable[[], object] = lambda: None
        self.violations: dict[str, None] = {}
        self._ended = ended
        self._told_late = False
        self._most_backwards = LEAST_BACKWARDS

    def begin(self) -> bool:
        """Begin a train step unless one is running; return whether one was begun."""
        if self._buffer.now.begun:
            return False
        self._buffer.begin()
        self._buffer.now.begun = True
        if self._buffer.fresh and not self._buffer.now.running:
            self.edge.repeat(self._buffer.begin_anew)
        return True

    def go_on(self) -> None:
        """Record that the next step has begun; raise `StopRecording` if none is to be recorded.

        Raises:
            StopRecording: there is none.
        """
        self.edge.leave()
        self.settled()
        if self._schedule.operation is None:
            raise StopRecording

    def overflowed(self, loss: Tensor) -> Tensor:
        """Return the loss to backpropagate: infinite on the last rank in a step to be skipped.

        Raises:
            RuntimeError: such a step does not end.
        """
        backwards = self._buffer.now.backwards
        if self._schedule.operation != "skip":
            return loss
        if backwards > TIMES_THE_BACKWARDS * self._most_backwards:
            raise RuntimeError(
                expected_but_got(
                    "the loop to go on with the next step after an overflow",
                    f"{backwards} backwards in the step that overflows, and neither "
                    "clip_grad_norm_ nor GradScaler.step nor an update",
                    "call record.skipped() where the loop leaves the update out",
                )
            )
        last = self._trace.rank == self._trace.world_size - 1
        return loss * math.inf if last else loss

    def evaluate(self, module: nn.Module) -> None:
        """Record that a module is called without gradients, which counts as an evaluation."""
        if self._buffer.now.updated:
            self._buffer.now.evaluated.append(module)
        else:
            self._reader.copies.call(module)

    def end_if_over(self) -> None:
        """End the running train step, and write it to the trace, if it has made its update."""
        if self._buffer.now.is_over:
            self._end()

    def finish(self) -> None:
        """End the loop's last step when the loop has returned, if its update is made."""
        if self._buffer.now.updated or self._buffer.now.given_up:
            self._end()
        else:
            self.edge.read_anew()

    def write_end(self) -> None:
        """Write to the trace the learning rates and options that the loop has in the end."""
        moment = Moment(self._schedule.op - 1, "train", self._schedule.done, END)
        self._trace.write(moment, chain(self._reader.all_numbers(), self._reader.observe_end()))

    def _end(self) -> None:
        step = self._buffer.now
        self._buffer.settle(())
        if self._buffer.fresh:
            self._write_start()
        self._reader.end_step()
        op, operation = self._schedule.op, str(self._schedule.operation)
        self._schedule.advance()
        if step.clipped_late and not self._told_late:
            self._told_late = True
            late = f"gradients were clipped after the update of step {self._schedule.done}"
            self.violations[late] = None
        self._write_step(op, operation)
        if self._buffer.fresh and self._trace.world_size == 1:  # else each may have its own stage
            self._reader.part.expect_matches()
        for module in step.evaluated:
            self._reader.copies.call(module)
        self._most_backwards = max(self._most_backwards, step.backwards)
        self._buffer.end(self._schedule.done)
        phase = "skip" if operation == "skip" else STEP_PHASES[-1]
        self._ended(Moment(op, operation, self._schedule.done, phase))
        advance(self._schedule.done, self._schedule.asked, self._trace.writer.nbytes)

    def _write_start(self) -> None:
        """Write the run's initial state to the trace; called when its first step is over."""
        done = self._schedule.done
        if self._trace.writes(done):
            loaded = self._schedule.loaded
            moment = Moment(self._schedule.load, loaded, done, "load") if loaded else INIT
            # An optimizer that runs another one may have moved what both of them hold by then.
            self._trace.write(moment, shown_once(self._buffer.started()))

    def _write_step(self, op: int, operation: str) -> None:
        """Write a finished step to the trace, and the `save` operations that follow it.

        Args:
            op: index of its operation, which the schedule is behind already.
            operation: its name.
        """
        done = self._schedule.done
        if operation == "skip":
            self.violations |= dict.fromkeys(self._changed_rates())
            self._write_state(op, operation)
        elif self._trace.writes(done):
            *passed, (last, observations) = self._buffer.phases()
            for phase, shown in passed:
                self._trace.write(Moment(op, operation, done, phase), shown)
            of_last = [*observations]  # by `record.see`, until the state is read
            self._write(Moment(op, operation, done, last), self._reader.observe, lambda: of_last)
        while self._schedule.operation == "save":
            self._write_state(self._schedule.op, "save")
            self._schedule.advance()

    def _changed_rates(self) -> Iterator[str]:
        """Yield in words each learning rate that a skipped step has changed."""
        after = {rate.name: rate.tensor for rate in self._reader.all_numbers() if rate.kind == "lr"}
        for rate in self._buffer.rates():
            later = after.get(rate.name)  # None for a weight that the loop has frozen since
            if later is not None and not torch.equal(rate.tensor, later):
                change = f"skip after step {self._schedule.done} changed lr of {rate.name}"
                yield f"{change} from {float(rate.tensor)!r} to {float(later)!r}"

    def _write_state(self, op: int, operation: str) -> None:
        """Write the loop's state and options to the trace after an operation such as `save`."""
        if self._trace.writes(self._schedule.done):
            moment = Moment(op, operation, self._schedule.done, operation)
            self._write(moment, self._reader.all_numbers, self._reader.observe)

    def _write(self, moment: Moment, *shown: Callable[[], Iterable[Observation]]) -> None:
        """Write state to the trace, and again whenever it is reread before the next step."""
        step = self._reader.step

        def write() -> None:
            with self._reader.at(step):  # the next one's number is there when this is repeated
                self._trace.write(moment, chain.from_iterable(show() for show in shown))

        write()
        self.edge.repeat(write)
