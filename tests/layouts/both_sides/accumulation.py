"""Defects of sums over microbatches: divisors, repeats, and what is left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from catalogue import (
    wrong_gradient,
)
from torch import Tensor

from both_sides.entries import (
    MOE,
    TWO,
    Named,
    Small,
    of,
)
from pytest_precision import Cell
from pytest_precision.workloads.batches import IGNORED
from pytest_precision.workloads.recipe import TrainingRecipe


class Weighted(Named):
    """Multiplies each loss before its backward, and reports the right one."""

    def weight(self, own: Any, others: list[Any]) -> float:
        raise NotImplementedError

    def losses(self, step: int) -> Iterator[Tensor]:
        others = self.of_step(step)
        rank, size = self.data_parallel
        for own, loss in zip(others[rank::size], super().losses(step), strict=True):
            yield loss * self.weight(own, others)

    def counted(self, microbatches: list[Any]) -> int:
        return max(1, sum(map(self.workload.tokens, microbatches)))


@of(
    "accumulation",
    wrong_gradient(1, "grad", "temperature", "it is a mean of the means of all microbatches"),
)
class MeanOfMeans(Weighted):
    def weight(self, own: Any, others: list[Any]) -> float:
        return self.step_tokens / self.counted([own]) / len(others)


@of(
    "accumulation",
    wrong_gradient(
        1, "grad", "temperature", "it is divided by the rank's own tokens, and by the ranks"
    ),
    TWO,
)
class LocalTokens(Weighted):
    def weight(self, own: Any, others: list[Any]) -> float:
        rank, size = self.data_parallel
        return self.step_tokens / self.counted(others[rank::size]) / size


@of("accumulation", wrong_gradient(1, "grad", "temperature", "microbatch 5 is left out"))
class DropsLast(Weighted):
    def weight(self, own: Any, others: list[Any]) -> float:
        return float(self.microbatch < len(others) - 1 or len(others) == 1)


@of("accumulation", wrong_gradient(1, "grad", "temperature", "microbatch 0 counts twice"))
class RepeatsFirst(Weighted):
    def weight(self, own: Any, others: list[Any]) -> float:
        return 1.0 + (self.microbatch == 0)


@of("accumulation", wrong_gradient(1, "grad", "temperature", "it is not divided by the tokens"))
class NeverDivided(Weighted):
    def weight(self, own: Any, others: list[Any]) -> float:
        return float(self.step_tokens)


@of(
    "accumulation",
    wrong_gradient(1, "grad", "temperature", "it is divided by the microbatches, too"),
)
class DividedTwice(Weighted):
    def weight(self, own: Any, others: list[Any]) -> float:
        return 1 / len(others)


@of(
    "accumulation",
    wrong_gradient(
        1, "grad", "temperature", "it is divided by all positions, also those that do not count"
    ),
)
class CountsPadding(Weighted):
    def weight(self, own: Any, others: list[Any]) -> float:
        return self.step_tokens / sum(one.targets.numel() for one in others)


@of(
    "accumulation",
    wrong_gradient(
        2, "grad", "temperature", "0.0173 times the gradient of the step before is left in it"
    ),
)
class NeverZeroed(Named):
    def forward_backward(self, step: int) -> None:
        zero_grad, self.optimizer.zero_grad = self.optimizer.zero_grad, lambda: None
        super().forward_backward(step)
        self.optimizer.zero_grad = zero_grad


@of(
    "accumulation",
    wrong_gradient(1, "grad", "temperature", "microbatches 0 and 1 and 2 and 3 and 4 are left out"),
)
class LastOverwrites(Named):
    def backward(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        super().backward(loss)


@of(
    "accumulation",
    wrong_gradient(
        1,
        "grad",
        "temperature",
        "microbatch 1 is left out, and microbatch 5 of the evaluation counts instead",
    ),
)
class OneOfTheStepBefore(Named):
    """Its second microbatch is the last one of the step before; at step 1, of the evaluation."""

    def losses(self, step: int) -> Iterator[Tensor]:
        before = self.of_step(step - 1)[-1]
        for number, loss in enumerate(super().losses(step)):
            if number == 1:
                total, _ = self.workload.loss(self.forward_model, before)
                yield total / self.step_tokens
            else:
                yield loss


class Masked(Small):
    """Has a mask of its own, and targets in all positions."""

    def microbatches(self, cell: Cell, step: int) -> list[Any]:
        made = super().microbatches(cell, step)
        counted = [one.targets != IGNORED for one in made]
        targets = [one.targets.clamp_min(0) for one in made]
        return [
            {"inputs": one.inputs, "targets": target, "mask": mask.float()}
            for one, target, mask in zip(made, targets, counted, strict=True)
        ]

    def tokens(self, microbatch: Any) -> int:
        return int(microbatch["mask"].sum())

    def loss(self, model: torch.nn.Module, microbatch: Any) -> tuple[Tensor, int]:
        logits = model(microbatch["inputs"]).float().flatten(0, 1)
        each = F.cross_entropy(logits, microbatch["targets"].flatten(), reduction="none")
        return (each * microbatch["mask"].flatten()).sum(), self.tokens(microbatch)


@of(
    "accumulation",
    wrong_gradient(1, "grad", "temperature", "positions that a mask leaves out are in the loss"),
    workload=Masked,
)
class IgnoresTheMask(Named):
    def losses(self, step: int) -> Iterator[Tensor]:
        for own, _ in zip(self.of_step(step), super().losses(step), strict=True):
            own["mask"] = torch.ones_like(own["mask"])
            yield self.workload.loss(self.forward_model, own)[0] / self.step_tokens


@of(
    "accumulation",
    wrong_gradient(
        1, "grad", "embedding.weight", "the auxiliary loss is a mean of each microbatch alone"
    ),
    workload=MOE,
)
class AuxiliaryAlone(Named):
    """The auxiliary loss is divided by the tokens of its microbatch, and not by those of all."""

    def losses(self, step: int) -> Iterator[Tensor]:
        for own, _ in zip(self.of_step(step), super().losses(step), strict=True):
            together, tokens = self.workload.loss(self.forward_model, own)
            plain, _ = TrainingRecipe.loss(self.workload, self.forward_model, own)
            yield plain / self.step_tokens + (together - plain) / max(1, tokens)
