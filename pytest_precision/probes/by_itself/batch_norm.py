"""Find batch norms that count a batch, and move their statistics, again in backward.

Each forward of such a module counts one batch. A block that backward computes again runs the
module once more, on the same batch. Recomputation may let the module count there and not in the
forward, so that what is judged is how much it counts in all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from pytest_precision._torch.around import current_node
from pytest_precision._torch.training import counted_batches
from pytest_precision.probes.by_itself.run_judge import JudgedRun, RunJudge


@dataclass
class Calls:
    """The calls of one module between two updates.

    Attributes:
        module: it.
        before: a copy of its count of batches before the first of them.
        forwards: how many calls there were outside of a backward.
        again: how many there were in one.
    """

    module: nn.Module
    before: Tensor
    forwards: int = 0
    again: int = 0


class CountedTwice(RunJudge):
    """Finds modules whose `num_batches_tracked` grows by more than one in a forward."""

    rule: ClassVar[str] = "counted_twice"
    kind: ClassVar[str] = "buffer"

    def __init__(self, run: JudgedRun) -> None:
        super().__init__(run)
        self._calls: dict[int, Calls] = {}

    def forward(self, module: nn.Module) -> None:
        """Count a call of a module that counts its batches."""
        counter = counted_batches(module)
        if counter is None or not module.training:
            return
        calls = self._calls.setdefault(id(module), Calls(module, counter))
        if not calls.forwards + calls.again:
            calls.before = counter.clone()
        calls.again += current_node() is not None
        calls.forwards += current_node() is None

    def update(self, optimizer: Optimizer, *, closure: bool) -> None:
        """RunJudge the modules that were called again in a backward."""
        twice = [calls for calls in self._calls.values() if calls.again and _grew(calls)]
        self._calls.clear()
        if twice:
            self.find(
                "{name} counted more batches at step {step} than it had: it runs again where its "
                "block is computed again in backward, and its running statistics move once more",
                twice[0].module,
                len(twice) - 1,
            )


def _grew(calls: Calls) -> bool:
    """Return whether a module has counted more batches than its forwards had."""
    counter = counted_batches(calls.module)
    return counter is not None and int(counter - calls.before) > calls.forwards
