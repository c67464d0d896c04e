"""Find weights that are read as autocast has cast them before an update.

Autocast keeps the cast of a weight until its outermost block ends. A block around the whole loop
computes with the weights of the first step for ever.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pytest_precision.engine.groups import updated_tensors
from pytest_precision.probes.by_itself.run_judge import JudgedRun, RunJudge

CAST_MODULES = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
"""Modules whose weight autocast casts."""


class StaleCasts(RunJudge):
    """Finds forwards that read the cast of a weight that was updated since it was cast."""

    rule: ClassVar[str] = "stale_cast"
    kind: ClassVar[str] = "used_param"

    def __init__(self, run: JudgedRun) -> None:
        super().__init__(run)
        # Of each weight that has a cast, whether it was updated since; with the tensor, whose id
        # no other one gets.
        self._casts: dict[int, Tensor] = {}
        self._updated: set[int] = set()

    def forward(self, module: nn.Module) -> None:
        """Note that autocast casts the weight of a module, or reads the cast that it has."""
        if not isinstance(module, CAST_MODULES):
            return
        # A weight with a parametrization is computed where it is read, which may move its state.
        weight = module._parameters.get("weight")
        if weight is not None and is_cast_once(weight):
            self._casts.setdefault(id(weight), weight)
            if id(weight) in self._updated:
                self.find(
                    "{name} was read at step {step} as it was cast before an update: autocast "
                    "keeps casts until its outermost block ends, which must be within a step",
                    weight,
                )

    def update(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Note which weights have a cast that the update makes stale."""
        if self._casts:
            members = {id(tensor) for tensor in updated_tensors(optimizer)}
            self._updated |= members & self._casts.keys()

    def forgets_casts(self) -> None:
        """Forget all casts, as autocast does."""
        self._casts.clear()
        self._updated.clear()


def is_cast_once(weight: Tensor) -> bool:
    """Return whether autocast casts this weight now, and keeps the cast."""
    return (
        torch.is_grad_enabled()
        and torch.is_autocast_enabled(weight.device.type)
        and torch.is_autocast_cache_enabled()
        and weight.dtype == torch.float32
        and weight.requires_grad
        and weight.is_leaf
        and torch.get_autocast_dtype(weight.device.type) != torch.float32
    )
