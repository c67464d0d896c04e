"""Edge: where one step of a loop ends and the next one begins, which a forward shows too early.

Whatever calls the model after an update may be an evaluation, for which other weights take the
place of its own, as averages do, or another mode, until it is over. So what the step has left is
read at the first call, and read anew where the model is called again before a loss goes backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

import torch
from torch import nn

from pytest_precision.engine.observation import Observation
from pytest_precision.recorders.scripts.loop_reader import LoopReader, shown_once
from pytest_precision.recorders.scripts.loop_schedule import LoopSchedule
from pytest_precision.recorders.scripts.loop_trace import LoopTrace
from pytest_precision.recorders.scripts.step_buffer import StepBuffer
from pytest_precision.trace.moment import END, INIT, Moment


class Edge:
    """Writes what lies between two steps, and anew if the next one begins later than it seemed to.

    What is called of other modules, such as a teacher or the first of several towers, belongs to
    the step that it begins: only where the same model is called again, whatever wraps it, something
    is read anew.

    Args:
        reader: what can be seen of the loop.
        trace: writes it.
        schedule: where the loop stands.
    """

    def __init__(self, reader: LoopReader, trace: LoopTrace, schedule: LoopSchedule) -> None:
        self._reader = reader
        self._trace = trace
        self._schedule = schedule
        self._readings: list[Callable[[], None]] = []
        self._model: nn.Module | None = None
        self._trains = False

    # --- what is written ------------------------------------------------------------------------

    def write_start(self) -> None:
        """Write what the run has started with, once its first step is over."""
        done = self._schedule.done
        if self._trace.writes(done):
            loaded = self._schedule.loaded
            moment = Moment(self._schedule.load, loaded, done, "load") if loaded else INIT
            # An optimizer that runs another one may have moved what both of them hold by then.
            self._trace.write(moment, shown_once(self._trace.started()))

    def write_step(self, op: int, operation: str, buffer: StepBuffer) -> Iterator[str]:
        """Write a step that is over, and the saves that follow it.

        Args:
            op: index of its operation, which the schedule is behind already.
            operation: its name.
            buffer: what the step has shown.

        Yields:
            what it has done that no step should, in words.
        """
        if operation == "skip":
            yield from self._changed_rates(buffer)
            self.write_state(op, operation)
        elif self._trace.writes(self._schedule.done):
            *passed, (last, seen) = buffer.phases()
            for phase, shown in passed:
                self._trace.write(Moment(op, operation, self._schedule.done, phase), shown)
            self.write_left(Moment(op, operation, self._schedule.done, last), [*seen])
        while self._schedule.operation == "save":
            self.write_state(self._schedule.op, "save")
            self._schedule.advance()

    def _changed_rates(self, buffer: StepBuffer) -> Iterator[str]:
        """Yield the rates that a skipped step has changed: no moment before it shows them."""
        after = {seen.name: seen for seen in self._reader.all_numbers() if seen.kind == "lr"}
        for seen in buffer.rates():
            now = after[seen.name].tensor
            if not torch.equal(seen.tensor, now):
                what = f"skip after step {self._schedule.done} changed lr of {seen.name}"
                yield f"{what} from {float(seen.tensor)!r} to {float(now)!r}"

    def write_left(self, moment: Moment, seen: list[Observation]) -> None:
        """Write the state that a step leaves, and what `record.see` has shown until then."""
        self._write(lambda: self._trace.write(moment, chain(self._reader.observe(), seen)))

    def write_state(self, op: int, operation: str) -> None:
        """Write everything that an operation leaves, numbers of the optimizers too."""
        if self._trace.writes(self._schedule.done):
            moment = Moment(op, operation, self._schedule.done, operation)
            shown = self._reader.all_numbers, self._reader.observe
            self._write(lambda: self._trace.write(moment, chain(*(own() for own in shown))))

    def write_end(self) -> None:
        """Write what the last step has set for a next one."""
        moment = Moment(self._schedule.op - 1, "train", self._schedule.done, END)
        shown = self._reader.all_numbers(), self._reader.objects.observe_end()
        self._trace.write(moment, chain(*shown))

    def _write(self, writing: Callable[[], None]) -> None:
        writing()
        self.repeat(writing)

    # --- when it is read anew -------------------------------------------------------------------

    def repeat(self, reading: Callable[[], None]) -> None:
        """Read again what has been read, until it is certain that the next step has begun."""
        self._readings.append(reading)

    def reach(self, module: nn.Module, *, trains: bool, begins: bool) -> None:
        """Take a call of a module for the beginning of a step, until another one is.

        Args:
            module: it.
            trains: whether gradients are enabled.
            begins: whether the loop calls it, and no other module does.
        """
        if self._model is None:
            self._model = module
            self._trains = trains
        elif trains and self._is_same(module, begins=begins):
            self._model = module
            self._trains = True
            self.read_anew()

    def begin_in_step(self) -> None:
        """Let the step of an optimizer begin one, whose closure computes the gradients."""
        if self._model is not None and not self._trains:
            self.read_anew()

    def read_anew(self) -> None:
        """Read everything again, unless it is certain that the next step has begun."""
        for reading in self._readings:
            reading()

    def leave(self) -> None:
        """Begin the step for good: what was read last stays."""
        self._readings.clear()
        self._model = None

    def _is_same(self, module: nn.Module, *, begins: bool) -> bool:
        """Return whether a call is one of the model that was called first.

        Within a forward that trains, the model calls its parts.
        """
        assert self._model is not None
        if self._trains:
            return begins and _holds(module, self._model)
        return _holds(module, self._model) or _holds(self._model, module)


def _holds(whole: nn.Module, part: nn.Module) -> bool:
    return any(part is module for module in whole.modules())
