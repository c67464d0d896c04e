"""Defects of the reduction over the ranks."""

from __future__ import annotations

import torch.distributed as dist
from catalogue import (
    contradicts,
    differs,
)
from torch import Tensor

from both_sides.entries import (
    TWO,
    Named,
    of,
)

OF_SUM = (1, "reduced_grad", "temperature", "the sum of grad over the ranks")
"""The step, kind and tensor in which a wrong sum shows first, and what it is held to."""


@of("reduction", differs(1, "reduced_grad", "head.weight", "replicas", phase="reduce_grads"), TWO)
class OneLocal(Named):
    def reduce_grads(self) -> None:
        kept = self.gradients["head.weight"].clone()
        super().reduce_grads()
        self.gradients["head.weight"].copy_(kept)


@of("reduction", contradicts(*OF_SUM, factor=0.5, everywhere=True), TWO)
class Averages(Named):
    def reduce_grads(self) -> None:
        super().reduce_grads()
        for gradient in self.gradients.values():
            gradient.div_(self.cell.world_size)


@of("reduction", contradicts(*OF_SUM, factor=2, everywhere=True), TWO)
class ReducesTwice(Named):
    def reduce_grads(self) -> None:
        super().reduce_grads()
        super().reduce_grads()


@of("reduction", contradicts(*OF_SUM, factor=0.5837), TWO)
class Maximum(Named):
    def reduce_grads(self) -> None:
        for gradient in self.gradients.values():
            dist.all_reduce(gradient, dist.ReduceOp.MAX)


@of("reduction", contradicts(*OF_SUM, factor=0.4163), TWO)
class FirstRankAlone(Named):
    def reduce_grads(self) -> None:
        for gradient in self.gradients.values():
            dist.broadcast(gradient, 0)


@of("reduction", differs(1, "reduced_grad", "temperature", "replicas", phase="reduce_grads"), TWO)
class TailStaysLocal(Named):
    def reduce_grads(self) -> None:
        tails = {name: g.view(-1)[-3:].clone() for name, g in self.gradients.items()}
        super().reduce_grads()
        for name, gradient in self.gradients.items():
            gradient.view(-1)[-3:] = tails[name]


@of(
    "reduction",
    contradicts(
        1, "reduced_grad", "blocks.0.scale", "the sum of grad over the ranks", factor=-0.1267
    ),
    TWO,
)
class SwappedBuckets(Named):
    def reduce_grads(self) -> None:
        super().reduce_grads()
        first, second = self.gradients["blocks.0.scale"], self.gradients["blocks.1.scale"]
        kept = first.clone()
        first.copy_(second)
        second.copy_(kept)


@of(
    "reduction",
    contradicts(1, "reduced_grad", "temperature", "the sum of grad over the ranks", factor=0.4588),
    TWO,
)
class ReducedBeforeTheLast(Named):
    """The reduction starts before the backward of the last microbatch is over."""

    def forward_backward(self, step: int) -> None:
        self.early: list[Tensor] = []
        super().forward_backward(step)

    def microbatch_done(self) -> None:
        self.early = self.early or [g.clone() for g in self.gradients.values()]

    def reduce_grads(self) -> None:
        for gradient, early in zip(self.gradients.values(), self.early, strict=False):
            gradient.copy_(early)
        super().reduce_grads()
