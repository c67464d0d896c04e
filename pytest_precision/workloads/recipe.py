"""The common part of the built-in workloads: ragged data, a loss, and a training recipe."""

from __future__ import annotations

from abc import abstractmethod
from math import cos, pi
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from pytest_precision.matrix.cell import Cell
from pytest_precision.workloads.base import Workload
from pytest_precision.workloads.batches import (
    IGNORED,
    QUIET_STEP,
    QUIET_WEIGHT,
    SHORT_STEP,
    Extent,
    Microbatch,
    cut,
    extents,
)
from pytest_precision.workloads.rules import AdamW, OptimizerRule

WARMUP = 2
"""Train steps below the full learning rate; a run of four steps includes the whole warm-up."""

HORIZON = 256
"""Train steps until the cosine ends."""

LEAST_RATE = 0.1
"""The learning rate from `HORIZON` on, as a share of the full one."""


def warmup_cosine(steps: int) -> float:
    """Return the share of the full learning rate that applies after `steps` train steps.

    The share rises linearly from `1 / (WARMUP + 1)` to 1, then falls as half a cosine to
    `LEAST_RATE`. Until `HORIZON` no two steps have the same share.
    """
    if steps < WARMUP:
        return (steps + 1) / (WARMUP + 1)
    progress = min(1.0, (steps - WARMUP) / (HORIZON - WARMUP))
    return LEAST_RATE + (1 - LEAST_RATE) * (1 + cos(pi * progress)) / 2


class TrainingRecipe(Workload):
    """The base of the built-in workloads: classification of tokens, with ragged data.

    Attributes:
        lr: learning rate of the matrices; that of vectors is twice as high.
        seed: seed of the data; the weights come from torch's global generator.
        rounded: whether all weights start as numbers of bf16.
    """

    # Low enough to clip every step but the quiet one: a fifth of the smallest gradient norm in 220
    # steps of any built-in workload, and an eighth of their first norms.
    max_norm: float | None = 0.05
    optimizer_rule: OptimizerRule | None = AdamW()

    def __init__(self, *, lr: float, seed: int, rounded: bool) -> None:
        self.lr = lr
        self.seed = seed
        self.rounded = rounded

    @abstractmethod
    def examples(
        self, generator: torch.Generator, shapes: list[Extent], step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw the inputs and targets of a step's rows, before they are cut to unequal lengths."""

    def groups(self, model: torch.nn.Module) -> list[dict[str, Any]]:
        """Return two parameter groups, one of matrices and one of vectors.

        Vectors have 2 times the learning rate and 1/5 of the weight decay.

        Frozen parameters are in neither.
        """
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return [
            {
                "params": [parameter for parameter in parameters if parameter.dim() > 1],
                "lr": self.lr,
                "weight_decay": 0.1,
            },
            {
                "params": [parameter for parameter in parameters if parameter.dim() <= 1],
                "lr": 2 * self.lr,
                "weight_decay": 0.02,
            },
        ]

    def scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        """Return a scheduler with warm-up and cosine, the same for both groups."""
        return torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_cosine)

    def microbatches(self, cell: Cell, step: int) -> list[Microbatch]:
        """Draw microbatches with rows of unequal length, the same for a step and seed."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        number = cell.fewest_microbatches if step == SHORT_STEP else cell.microbatches
        quiet = step == QUIET_STEP
        shapes = extents(generator, number, empty=int(quiet))
        inputs, targets = self.examples(generator, shapes, step)
        return [
            Microbatch(m.inputs.to(cell.device), m.targets.to(cell.device), m.weight)
            for m in cut(inputs, targets, shapes, QUIET_WEIGHT if quiet else 1.0)
        ]

    def tokens(self, microbatch: Microbatch) -> int:
        """Return how many targets of a microbatch count in the loss."""
        return int((microbatch.targets != IGNORED).sum())

    def loss(self, model: torch.nn.Module, microbatch: Microbatch) -> tuple[torch.Tensor, int]:
        """Compute a microbatch's summed cross-entropy in fp32, times the microbatch's weight."""
        logits = model(microbatch.inputs).float()
        total = F.cross_entropy(
            logits.flatten(0, 1),
            microbatch.targets.flatten(),
            ignore_index=IGNORED,
            reduction="sum",
        )
        return total * microbatch.weight, self.tokens(microbatch)


_GAIN = (0.6, 0.9)
_BIAS = (-0.2, 0.2)


def initialised(model: nn.Module, *, rounded: bool) -> nn.Module:
    """Initialise all parameters of `model` from torch's global generator, and return it.

    Matrices are normal with standard deviation `1 / sqrt(columns)`; other parameters are uniform,
    gains below 1 and biases around 0: a gain of 1 or a bias of 0 would hide that it is not applied.
    Floating buffers are drawn as biases are. All parameters but the last one are rounded to bf16,
    so that storing them in bf16 makes no difference at the start; it does to the last one.

    Args:
        model: the model.
        rounded: whether the last one is rounded too.
    """
    *_, between = model.parameters()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
            else:
                parameter.uniform_(*(_BIAS if name.endswith("bias") else _GAIN))
            if rounded or parameter is not between:
                parameter.copy_(parameter.bfloat16())
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.uniform_(*_BIAS)
    return model
