"""Engines on shards of FSDP2 with one wrong line each, which ends in `# wrong`, and a right one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from pytest_precision import Cell, Engine, Workload, layouts
from pytest_precision.layouts.sharded import FSDP2Engine


def made(workload: Workload, cell: Cell, *, kind: type[FSDP2Engine]) -> Engine:
    """The engine of `layouts.fsdp2`, with what a class overrides."""
    engine = layouts.fsdp2(workload, cell)
    engine.__class__ = kind
    return engine


def chosen(workload: Workload, cell: Cell) -> Engine:
    """The engine whose class an axis of the cell names: all such sides share their ranks."""
    return made(workload, cell, kind=globals()[cell.engine])


class Right(FSDP2Engine):
    """Nothing is wrong."""


class WeighsLosses(FSDP2Engine):
    """The losses of microbatches are weighed."""

    def losses(self, step: int) -> Iterator[Tensor]:
        for loss in super().losses(step):
            yield loss * 0.75  # wrong


class OtherForward(FSDP2Engine):
    """One block's outputs are scaled."""

    def forward_backward(self, step: int) -> None:
        handle = self.model.blocks[1].register_forward_hook(scaled)
        super().forward_backward(step)
        handle.remove()


def scaled(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
    return output * 0.9  # wrong


class HalvesGradients(FSDP2Engine):
    """Gradients are halved after they are reduced."""

    def reduce_grads(self) -> None:
        for _, parameter in self.masters():
            parameter.grad.mul_(0.5)  # wrong


class HalvesOnOneRank(FSDP2Engine):
    """One rank halves its shards."""

    def reduce_grads(self) -> None:
        if self.rank == 1:
            for _, parameter in self.masters():
                parameter.grad.to_local().mul_(0.5)  # wrong


class ClipsByOwnNorm(FSDP2Engine):
    """Each rank clips by the norm of its own shards."""

    def total_norm(self, gradients: list[Tensor]) -> Tensor:
        shards = [one.to_local().double() for one in gradients]
        return nn.utils.get_total_norm(shards)  # wrong


class ClipsFurther(FSDP2Engine):
    """The limit is another one."""

    def clip_grads(self) -> None:
        self.max_norm = 0.01
        super().clip_grads()  # wrong


class RoundsWeights(FSDP2Engine):
    """Weights are rounded to bf16 after the update."""

    def update_weights(self) -> None:
        super().update_weights()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(parameter.bfloat16())  # wrong


class ShrinksMoments(FSDP2Engine):
    """A moment decays once more."""

    def update_weights(self) -> None:
        super().update_weights()
        for state in self.optimizer.state.values():
            state["exp_avg"].mul_(0.99)  # wrong
