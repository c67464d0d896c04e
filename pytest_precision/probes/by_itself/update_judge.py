"""The base of judgements on updates, each of which is one however an optimizer makes it."""

from __future__ import annotations

from collections import Counter

from torch.optim import Optimizer

from pytest_precision.probes.by_itself.run_judge import JudgedRun, RunJudge


class UpdateJudge(RunJudge):
    """Judges whole updates: a step that calls that of the class which it extends makes one.

    Args:
        run: tells what runs.

    Attributes:
        updates: number of those that each optimizer has begun.
    """

    def __init__(self, run: JudgedRun) -> None:
        super().__init__(run)
        self.updates: Counter[Optimizer] = Counter()
        self._depth: Counter[Optimizer] = Counter()

    def update(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Tell of the outermost step, before it."""
        self._depth[optimizer] += 1
        if self._depth[optimizer] == 1:
            self.updates[optimizer] += 1
            self.begins(optimizer, closure=closure)

    def updated(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Tell of the outermost step, after it."""
        self._depth[optimizer] -= 1
        if not self._depth[optimizer]:
            self.ended(optimizer)

    def begins(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Do nothing here; called before an update."""

    def ended(self, optimizer: Optimizer) -> None:
        """Do nothing here; called after it."""
