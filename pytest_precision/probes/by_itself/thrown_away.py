"""Find autograd functions whose result nobody uses.

Such a function may exist for its backward alone, as one that carries a second loss: called for its
effect, it has none. Its node in the graph is gone before the next backward. Where one call of a
line is kept, as in training beside an evaluation, the line is right. Functions of installed
packages are left aside: a framework may drop results, as Transformer Engine does of its casts.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from pytest_precision._torch.around import current_node
from pytest_precision.probes.by_itself.run_judge import JudgedRun, RunJudge
from pytest_precision.ranks.code.installed import users_file


class AppliedCall(NamedTuple):
    """A call of an autograd function.

    Attributes:
        place: name of the function with the line that calls it.
        nodes: of its results in the graph, as long as these are there.
    """

    place: str
    nodes: list[weakref.ref[Any]]


class ThrownAway(RunJudge):
    """Finds lines that call an autograd function and never use its result."""

    rule: ClassVar[str] = "thrown_away"
    kind: ClassVar[str] = "grad"

    def __init__(self, run: JudgedRun) -> None:
        super().__init__(run)
        self._calls: list[AppliedCall] = []
        self._used: set[str] = set()
        self._unused: dict[str, None] = {}

    def applied(self, function: type, results: Any, file: str, line: int) -> None:
        """Watch the results of a function of the user's own code, outside of a backward."""
        place = f"{function.__name__} at {file.rpartition('/')[2]}:{line}"
        is_users = users_file(sys.modules.get(function.__module__)) is not None
        if place in self._used or not is_users or current_node() is not None:
            return
        outputs = results if isinstance(results, tuple) else (results,)
        nodes = [output.grad_fn for output in outputs if type(output) is Tensor and output.grad_fn]
        if nodes:
            self._calls.append(AppliedCall(place, [weakref.ref(node) for node in nodes]))

    def backward(self, loss: Tensor) -> Tensor:
        """Tell calls whose result is in a graph from those whose result is gone."""
        for call in self._calls:
            if any(node() is not None for node in call.nodes):
                self._used.add(call.place)
            else:
                self._unused[call.place] = None
        self._calls.clear()
        return loss

    def over(self) -> None:
        """Report the lines of which no call was used."""
        for place in self._unused:
            if place not in self._used:
                self.find(f"nothing uses the result of {place}, so that its backward never runs")
