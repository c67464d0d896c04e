"""Edge: reread a loop's state between two steps if the next one begins later than assumed.

Whatever calls the model after an update may be an evaluation, for which other weights take the
place of its own, as averages do, or another mode, until it is over. So what the step has left is
read at the first call, and read anew where the model is called again before a loss goes backward.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn


class Edge:
    """Tracks the time between two train steps; rereads the loop's state until the next has begun.

    What is called of other modules, such as a teacher or the first of several towers, belongs to
    the step that it begins: only where the same model is called again, whatever wraps it, something
    is read anew.
    """

    def __init__(self) -> None:
        self._readings: list[Callable[[], object]] = []
        self._model: nn.Module | None = None
        self._trains = False

    def repeat(self, reading: Callable[[], object]) -> None:
        """Register a function that reads state after a step, to repeat it if that was too early."""
        self._readings.append(reading)

    def reach(self, module: nn.Module, *, trains: bool, begins: bool) -> None:
        """Note a call between steps; reread the state if this call, not the first, begins a step.

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
        """Read the loop's state again, as a closure that `optimizer.step` runs begins the step."""
        if self._model is not None and not self._trains:
            self.read_anew()

    def read_anew(self) -> None:
        """Call the registered functions again; none are left once the next step has begun."""
        for reading in self._readings:
            reading()

    def leave(self) -> None:
        """Forget the functions registered to reread the state, as the next step has begun."""
        self._readings.clear()
        self._model = None

    def _is_same(self, module: nn.Module, first: nn.Module, *, begins: bool) -> bool:
        """Return whether a call is of the model first called since the last step, wrapped or not.

        Within a forward that trains, the model calls its parts.
        """
        if self._trains:
            return begins and _holds(module, first)
        return _holds(module, first) or _holds(first, module)


def _holds(whole: nn.Module, part: nn.Module) -> bool:
    return any(part is module for module in whole.modules())
