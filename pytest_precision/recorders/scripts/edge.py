"""Edge: where one step of a loop ends and the next one begins, which a forward shows too early.

Whatever calls the model after an update may be an evaluation, for which other weights take the
place of its own, as averages do, or another mode, until it is over. So what the step has left is
read at the first call, and read anew where the model is called again before a loss goes backward.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

from torch import nn

from pytest_precision.engine.observation import Observation
from pytest_precision.recorders.scripts.course import Course
from pytest_precision.recorders.scripts.sight import Sight, shown_once
from pytest_precision.recorders.scripts.tape import Tape
from pytest_precision.trace.moment import END, INIT, Moment


class Edge:
    """Writes what lies between two steps, and anew if the next one begins later than it seemed to.

    What is called of other modules, such as a teacher or the first of several towers, belongs to
    the step that it begins: only where the same model is called again, whatever wraps it, something
    is read anew.

    Args:
        sight: what can be seen of the loop.
        tape: writes it.
        course: where the loop stands.
    """

    def __init__(self, sight: Sight, tape: Tape, course: Course) -> None:
        self._sight, self._tape, self._course = sight, tape, course
        self._readings: list[Callable[[], None]] = []
        self._model: nn.Module | None = None
        self._trains = False

    # --- what is written ------------------------------------------------------------------------

    def write_start(self) -> None:
        """Write what the run has started with, once its first step is over."""
        done = self._course.done
        if self._tape.writes(done):
            loaded = self._course.loaded
            moment = Moment(self._course.load, loaded, done, "load") if loaded else INIT
            # An optimizer that runs another one may have moved what both of them hold by then.
            self._tape.write(moment, shown_once(self._tape.started()))

    def write_left(self, moment: Moment, seen: list[Observation]) -> None:
        """Write what a step leaves, and what the loop has shown of its own by then."""
        self._write(lambda: self._tape.write(moment, chain(self._sight.state(), seen)))

    def write_state(self, op: int, operation: str) -> None:
        """Write everything that an operation leaves, numbers of the optimizers too."""
        if self._tape.writes(self._course.done):
            moment = Moment(op, operation, self._course.done, operation)
            shown = self._sight.all_numbers, self._sight.state
            self._write(lambda: self._tape.write(moment, chain(*(own() for own in shown))))

    def write_end(self) -> None:
        """Write what the last step has set for a next one."""
        moment = Moment(self._course.op - 1, "train", self._course.done, END)
        shown = self._sight.all_numbers(), self._sight.beside.observe_end()
        self._tape.write(moment, chain(*shown))

    def _write(self, writing: Callable[[], None]) -> None:
        writing()
        self.repeat(writing)

    # --- when it is read anew -------------------------------------------------------------------

    def repeat(self, reading: Callable[[], None]) -> None:
        """Read anew what was read already, as long as no step has begun for good."""
        self._readings.append(reading)

    def reach(self, module: nn.Module, *, trains: bool, begins: bool) -> None:
        """Take a call of a module for the beginning of a step, until another one is.

        Args:
            module: it.
            trains: whether gradients are enabled.
            begins: whether the loop calls it, and no other module does.
        """
        if self._model is None:
            self._model, self._trains = module, trains
        elif trains and self._is_same(module, begins=begins):
            self._model, self._trains = module, True
            self.read_anew()

    def begin_in_step(self) -> None:
        """Let the step of an optimizer begin one, whose closure computes the gradients."""
        if self._model is not None and not self._trains:
            self.read_anew()

    def read_anew(self) -> None:
        """Read everything again; nothing where a step has begun for good."""
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
