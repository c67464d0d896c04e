"""A fine-tuning run of 220 steps, small enough for a test: what an optimizer loses shows in it.

A trained model is close to where it should go: its updates are small beside its weights, as they
are when a language model is tuned further, and that is where bf16 weights stand still.
"""

from __future__ import annotations

from math import cos, pi
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from pytest_precision import Cell, Workload, close, unchecked

STEPS = 220
WARMUP = 22
BATCH = 64
LR = 1e-4
FEATURES, HIDDEN = 64, 256

TEACHER_DISTANCE = 0.003
"""Of each of the teacher's weights from the student's, up or down."""

USUAL_TOLERANCE = 2e-2
"""Relative, of a loss: what a comparison of training curves usually allows."""

LAST = 20
"""Steps that the final loss is the mean of: single batches differ by more than layouts do."""

ANOTHER_ARITHMETIC = unchecked(reason="another arithmetic on purpose; the loss curve is judged")

KEPT_OTHERWISE = (
    *("used_param", "loss", "grad", "reduced_grad", "grad_norm"),
    *("step", "exp_avg", "exp_avg_sq", "master_param", "compensation", "master", "param"),
)

SAME_RECIPE = dict.fromkeys(KEPT_OTHERWISE, ANOTHER_ARITHMETIC)
"""What is left bitwise is the learning rate and the generator: the two runs differ in nothing but
how their numbers are kept."""

FOUR_LOSSES = {**SAME_RECIPE, "loss": close(rtol=USUAL_TOLERANCE, atol=0.0)}
"""The usual test, in cells of four steps."""


def warmup_cosine(steps: int, total: int = STEPS) -> float:
    """Share of the full learning rate after `steps` train steps.

    Linear up to 1 after `WARMUP` steps, then half a cosine down to 0 at `total`, warm-up included.
    """
    if steps < WARMUP:
        return (steps + 1) / (WARMUP + 1)
    return (1 + cos(pi * min(1.0, (steps - WARMUP) / (total - WARMUP)))) / 2


class Perceptron(nn.Module):
    """Three matrices with GELU between them; computes in the dtype of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(FEATURES, HIDDEN, bias=False)
        self.middle = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, FEATURES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.up(x.to(self.up.weight.dtype)))
        result: Tensor = self.down(F.gelu(self.middle(x)))
        return result


class FineTuning(Workload):
    """Learns a teacher that is `TEACHER_DISTANCE` away from the weights that training starts from.

    These are a checkpoint's and not random: the same for every seed, and bf16 holds them exactly,
    so that no layout starts elsewhere. The loss is the squared error over the targets' variance.
    """

    max_norm: float | None = 1.0

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.pretrained = Perceptron()
        teacher = Perceptron()
        with torch.no_grad():
            for own, other in zip(self.pretrained.parameters(), teacher.parameters(), strict=True):
                start = torch.randn(own.shape, generator=generator) / own.shape[1] ** 0.5
                signs = torch.randint(2, own.shape, generator=generator) * 2 - 1
                own.copy_(start.bfloat16())
                other.copy_(own + TEACHER_DISTANCE * signs)
            self.inputs = torch.randn(STEPS + 1, BATCH, FEATURES, generator=generator)
            self.targets = teacher(self.inputs)
        self.variance = float(self.targets.var())

    def model(self, cell: Cell) -> nn.Module:
        model = Perceptron()
        model.load_state_dict(self.pretrained.state_dict())
        return model.to(cell.device)

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        return [{"params": list(model.parameters()), "lr": LR, "weight_decay": 0.01}]

    def scheduler(self, optimizer: torch.optim.Optimizer) -> LambdaLR:
        return LambdaLR(optimizer, warmup_cosine)

    def microbatches(self, cell: Cell, step: int) -> list[tuple[Tensor, Tensor]]:
        return [(self.inputs[step].to(cell.device), self.targets[step].to(cell.device))]

    def tokens(self, microbatch: tuple[Tensor, Tensor]) -> int:
        return len(microbatch[0])

    def loss(self, model: nn.Module, microbatch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
        inputs, targets = microbatch
        errors = (model(inputs).float() - targets).square().mean(dim=-1)
        return errors.sum() / self.variance, len(inputs)


def final(losses: list[float]) -> float:
    """Mean loss of the last steps."""
    return sum(losses[-LAST:]) / LAST


def relative_gaps(losses: dict[str, list[float]]) -> list[float]:
    """Relative difference between the losses of the two sides at each step."""
    pairs = zip(losses["candidate"], losses["reference"], strict=True)
    return [abs(ours / theirs - 1) for ours, theirs in pairs]
