"""Find parameters that each forward uses, and whose result reaches no loss.

Their module runs in training between two updates of their optimizer, which finds no gradient of
theirs, and finds some of others. A head that is switched off by a factor of zero has gradients of
zero. A result may be dropped on purpose, so that this is a note.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pytest_precision._torch.distributed import is_dtensor
from pytest_precision.engine.groups import updated_tensors
from pytest_precision.probes.by_itself.run_judge import JudgedRun
from pytest_precision.probes.by_itself.update_judge import UpdateJudge

WATCHED_UPDATES = 3
"""Updates of an optimizer that are looked at, none of which may find a gradient."""


class Unreached(UpdateJudge):
    """Notes parameters of modules that run in training and have no gradient at any update."""

    rule: ClassVar[str] = "unreached"
    kind: ClassVar[str] = "grad"
    fails: ClassVar[bool] = False
    watched: ClassVar[int] = WATCHED_UPDATES

    def __init__(self, run: JudgedRun) -> None:
        super().__init__(run)
        # By id, with the tensor, whose id no other one gets.
        self._used: dict[int, Tensor] = {}
        self._without: dict[int, tuple[Tensor, int]] = {}
        self._reached: set[int] = set()

    def forward(self, module: nn.Module) -> None:
        """Note the parameters of a module that runs in training, with gradients."""
        if not module.training or not torch.is_grad_enabled() or not self._is_watching():
            return
        for parameter in module.parameters(recurse=False):
            plain = type(parameter) in (Tensor, nn.Parameter) or is_dtensor(parameter)
            if plain and parameter.requires_grad and parameter.is_leaf:
                self._used[id(parameter)] = parameter

    def begins(self, optimizer: Optimizer) -> None:
        """Note which used parameters have no gradient, where others of the optimizer have one."""
        members = updated_tensors(optimizer)
        self._reached |= {id(tensor) for tensor in members if tensor.grad is not None}
        if not any(tensor.grad is not None for tensor in members):
            return
        for tensor in members:
            if self._used.pop(id(tensor), None) is not None and tensor.grad is None:
                _, times = self._without.get(id(tensor), (tensor, 0))
                self._without[id(tensor)] = tensor, times + 1

    def over(self) -> None:
        """Note the parameters that all watched updates have found without a gradient."""
        unreached = [
            tensor
            for key, (tensor, times) in self._without.items()
            if times >= WATCHED_UPDATES and key not in self._reached
        ]
        if unreached:
            self.find(
                "{name} is used in each step and has no gradient: what is made of it reaches no "
                "loss",
                unreached[0],
                len(unreached) - 1,
            )

    def _is_watching(self) -> bool:
        counts = self.updates.values()
        return not counts or min(counts) < WATCHED_UPDATES
