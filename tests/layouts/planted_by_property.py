"""Defects that one property of a workload shows, each with a workload that lacks the property."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from workload_violators import NeverQuiet, NothingFrozen

from pytest_precision import Cell, Engine, Workload, layouts
from pytest_precision.layouts.megatron.stored_model import BUCKET_SIZE
from pytest_precision.layouts.replicated import MasterEngine
from pytest_precision.workloads.batches import Microbatch
from pytest_precision.workloads.mixture import Moe, MoeBlock
from pytest_precision.workloads.recipe import TrainingRecipe

__all__ = ["NeverQuiet", "NothingFrozen"]


class ScalesUp(Engine):
    """A coefficient of the clip that is not limited to 1."""

    def clip_grads(self) -> None:
        super().clip_grads()
        if self.grad_norm < self.max_norm:
            for _, parameter in self.masters():
                parameter.grad.mul_(self.max_norm / self.grad_norm)


class WeighsMeans(Engine):
    """The control: the mean of a microbatch of at least one token, weighted by its tokens."""

    fewest = 1

    def losses(self, step: int) -> Iterator[Tensor]:
        for number, microbatch in self.my_microbatches(step):
            total, tokens = self.workload.loss(self.forward_model, microbatch)
            mean = total / torch.tensor(tokens).clamp(min=self.fewest)
            loss = mean * tokens / self.step_tokens
            self.report_loss(number, loss)
            yield loss


class MeanOfNothing(WeighsMeans):
    """The mean of no token is 0/0."""

    fewest = 0


class DecaysFrozen(Engine):
    """A decay of all that the model holds."""

    @torch.no_grad()
    def update_weights(self) -> None:
        super().update_weights()
        group = self.optimizer.param_groups[0]
        for parameter in self.model.parameters():
            if not parameter.requires_grad:
                parameter.mul_(1 - group["lr"] * group["weight_decay"])


class TrainsFrozen(Engine):
    """A flat buffer of all that the model holds, frozen or not, whose gradients start as zeros."""

    def __init__(self, workload: Workload, cell: Cell, model: nn.Module, optimizer: Any) -> None:
        super().__init__(workload, cell, model, optimizer)
        self.frozen = [p for p in model.parameters() if not p.requires_grad]
        optimizer.param_groups[0]["params"].extend(self.frozen)

    def clip_grads(self) -> None:
        for parameter in self.frozen:
            parameter.grad = torch.zeros_like(parameter)
        super().clip_grads()


def masters_of_rounded(workload: Workload, cell: Cell) -> Engine:
    """Masters that are made of the parameters, which have been rounded to bf16."""
    model, _ = layouts.resident(workload.model(cell), cell)
    return MasterEngine(workload, cell, model, deepcopy(model).float())


class Buckets(Engine):
    """The control: gradients are summed together up to the size of a bucket, larger ones alone."""

    def alone(self, gradient: Tensor) -> bool:
        return gradient.numel() >= BUCKET_SIZE

    def reduce_grads(self) -> None:
        gradients = [p.grad for _, p in self.masters() if p.grad is not None]
        packed = [gradient for gradient in gradients if gradient.numel() < BUCKET_SIZE]
        flat = torch.cat([gradient.flatten() for gradient in packed])
        dist.all_reduce(flat)
        parts = flat.split([gradient.numel() for gradient in packed])
        for gradient, part in zip(packed, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        for gradient in filter(self.alone, gradients):
            dist.all_reduce(gradient)


class LosesFullBuckets(Buckets):
    """What is exactly as large as a bucket is neither packed nor alone."""

    def alone(self, gradient: Tensor) -> bool:
        return gradient.numel() > BUCKET_SIZE


class NoAuxiliary(Moe):
    """A loss that is a cross-entropy alone."""

    def loss(self, model: nn.Module, microbatch: Microbatch) -> tuple[Tensor, int]:
        return TrainingRecipe.loss(self, model, microbatch)


class DropsAuxiliary(Engine):
    """A loop with a loss of its own."""

    def losses(self, step: int) -> Iterator[Tensor]:
        for number, microbatch in self.my_microbatches(step):
            assert isinstance(self.workload, TrainingRecipe)
            total, _ = TrainingRecipe.loss(self.workload, self.forward_model, microbatch)
            loss = total / self.step_tokens
            self.report_loss(number, loss)
            yield loss


class NoPrior(Moe):
    """Buffers that change nothing."""

    def model(self, cell: Cell) -> nn.Module:
        model = super().model(cell)
        for block in model.blocks:
            block.router.prior.zero_()
        return model


class RoundsBuffers(Engine):
    """A forward that reads buffers in the dtype that it computes in."""

    def forward_backward(self, step: int) -> None:
        kept = [buffer.clone() for buffer in self.model.buffers()]
        for buffer in self.model.buffers():
            if buffer.is_floating_point():
                buffer.copy_(buffer.bfloat16())
        super().forward_backward(step)
        for buffer, own in zip(self.model.buffers(), kept, strict=True):
            if buffer.is_floating_point():
                buffer.copy_(own)


class Floored(MoeBlock):
    """An expert's capacity that is rounded down."""

    def most(self, tokens: int) -> int:
        return int(self.capacity * 2 * tokens / len(self.load))


def floored(workload: Workload, cell: Cell) -> Engine:
    """Replicated AdamW with such experts."""
    model = workload.model(cell)
    for block in model.blocks:
        block.__class__ = Floored
    return Engine(workload, cell, model, torch.optim.AdamW(workload.groups(model)))
