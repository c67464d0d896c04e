"""The base of judgements on updates, each of which is one however an optimizer makes it."""

from __future__ import annotations

import sys
from collections import Counter
from typing import ClassVar

from torch import Tensor
from torch.optim import Optimizer

from pytest_precision._torch.distributed import is_dtensor
from pytest_precision.probes.by_itself.run_judge import JudgedRun, RunJudge

ELEMENTS = 1024
"""Elements of a tensor that stand for all of them."""


class UpdateJudge(RunJudge):
    """Judges whole updates: a step that calls that of the class which it extends makes one.

    Args:
        run: tells what runs.

    Attributes:
        watched: updates of an optimizer before which `begins` is called, unless they run a closure.
        updates: number of those that each optimizer has begun.
    """

    watched: ClassVar[int] = sys.maxsize

    def __init__(self, run: JudgedRun) -> None:
        super().__init__(run)
        self.updates: Counter[Optimizer] = Counter()
        self._depth: Counter[Optimizer] = Counter()

    def update(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Tell of the outermost step, before it."""
        self._depth[optimizer] += 1
        if self._depth[optimizer] == 1:
            self.updates[optimizer] += 1
            if not closure and self.updates[optimizer] <= self.watched:
                self.begins(optimizer)

    def updated(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Tell of the outermost step, after it."""
        self._depth[optimizer] -= 1
        if not self._depth[optimizer]:
            self.ended(optimizer)

    def begins(self, optimizer: Optimizer) -> None:
        """Do nothing here; called before an update that is watched."""

    def ended(self, optimizer: Optimizer) -> None:
        """Do nothing here; called after it."""


def some_of(tensor: Tensor) -> Tensor:
    """Return some elements of the part of a tensor that this rank has, from all over it."""
    local: Tensor = tensor.to_local() if is_dtensor(tensor) else tensor
    flat = local.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // ELEMENTS)][:ELEMENTS]
