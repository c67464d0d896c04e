"""Find copies of weights that are kept over an update, and read again after it.

A copy has a node in the graph of each loss that reads it: the cast or the gather that made it. A
node on which a loss has depended before an update of its weight, and on which another one depends
after it, has the value of before. Autocast keeps casts until its outermost block ends, so that a
block around the whole loop computes with the weights of the first step for ever.

Averages, targets, teachers and slow weights have no such node: they are copied without gradients.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pytest_precision.engine.groups import updated_tensors
from pytest_precision.probes.by_itself.graph_leaves import nodes_on_leaves
from pytest_precision.probes.by_itself.run_judge import JudgedRun
from pytest_precision.probes.by_itself.update_judge import UpdateJudge

WATCHED_UPDATES = 3
"""Updates of an optimizer after which graphs are still looked at."""

CAST = "ToCopyBackward0"
"""Name of the node of a cast."""

SEEN = "pytest_precision.seen"
"""Entry of a node's metadata: how many updates had begun when a loss first depended on it."""


class StaleCopies(UpdateJudge):
    """Finds losses that depend on a copy of a weight which an update has moved since."""

    rule: ClassVar[str] = "stale_copy"
    kind: ClassVar[str] = "used_param"

    def __init__(self, run: JudgedRun) -> None:
        super().__init__(run)
        # By id, with the tensor, whose id no other one gets: the number of its last update.
        self._moved: dict[int, tuple[Tensor, int]] = {}
        self._waiting: list[Tensor] = []

    def ended(self, optimizer: Optimizer) -> None:
        """Remember what was updated."""
        self._waiting += updated_tensors(optimizer)

    def forward(self, module: nn.Module) -> None:
        """Count what was updated as moved: a loss from before the update may still be due."""
        number = self.updates.total()
        if self._waiting and torch.is_grad_enabled():
            self._moved |= {id(tensor): (tensor, number) for tensor in self._waiting}
            self._waiting.clear()

    def backward(self, loss: Tensor) -> Tensor:
        """Look for nodes on weights that another loss depended on before an update."""
        number = self.updates.total()
        if number and min(self.updates.values()) > WATCHED_UPDATES:
            return loss
        stale: dict[int, str] = {}
        for node, leaf in nodes_on_leaves(loss):
            first_read = node.metadata.setdefault(SEEN, number)
            if first_read < self._moved.get(id(leaf), (leaf, 0))[1]:
                stale[id(leaf)] = node.name()
        if not stale:  # as nearly always: the names of a large model take long to walk
            return loss
        named_tensors = [tensor for _, tensor in self.run.parameters() if id(tensor) in stale]
        if named_tensors:
            by_autocast = torch.is_autocast_enabled(named_tensors[0].device.type)
            self.find(
                "{name} was read at step {step} as it was cast before an update: autocast keeps "
                "casts until its outermost block ends, which must be within a step"
                if by_autocast and stale[id(named_tensors[0])] == CAST
                else "{name} was read at step {step} as it was copied before an update: the copy, "
                "a cast or a gathered weight, is kept, and its source has changed since",
                named_tensors[0],
                len(named_tensors) - 1,
            )
        return loss
