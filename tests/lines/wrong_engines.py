"""Engines with one wrong line each, which ends in `# wrong`, and engines that are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pytest_precision import Cell, Engine, Workload, workloads

WORKLOAD = partial(workloads.mlp, depth=2)
"""What all engines train here; the second block is the one that some compute otherwise."""


def made(
    workload: Workload,
    cell: Cell,
    *,
    kind: type[Engine],
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    **options: Any,
) -> Engine:
    """An engine of a class, with an optimizer whose options are given."""
    model = workload.model(cell)
    return kind(workload, cell, model, optimizer(workload.groups(model), **options))


def of(kind: type[Engine], **options: Any) -> Callable[..., Engine]:
    return partial(made, kind=kind, **options)


def chosen(workload: Workload, cell: Cell) -> Engine:
    """The engine whose class an axis of the cell names: all such sides share their ranks."""
    return made(workload, cell, kind=globals()[cell.engine])


class Right(Engine):
    """Nothing is wrong."""


class ClipsFurther(Engine):
    """Gradients are scaled once more."""

    def clip_grads(self) -> None:
        super().clip_grads()
        for _, parameter in self.masters():
            parameter.grad.mul_(0.5)  # wrong


class ScalesTwo(Engine):
    """Two gradients are scaled, each by a line of its own."""

    def clip_grads(self) -> None:
        super().clip_grads()
        first, second, *_ = (parameter.grad for _, parameter in self.masters())
        first.mul_(0.5)  # wrong
        second.add_(first.numel())  # also wrong


class RoundsWeights(Engine):
    """Weights are rounded to bf16 after the update."""

    def update_weights(self) -> None:
        super().update_weights()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(parameter.bfloat16())  # wrong


class RoundsMoments(Engine):
    """A moment is rounded to bf16 after the update."""

    def update_weights(self) -> None:
        super().update_weights()
        for state in self.optimizer.state.values():
            state["exp_avg"].copy_(state["exp_avg"].bfloat16())  # wrong


class LosesMicrobatch(Engine):
    """Gradients are wiped before the last microbatch."""

    def losses(self, step: int) -> Iterator[Tensor]:
        for number, loss in enumerate(super().losses(step)):
            if number == 1:
                for parameter in self.model.parameters():
                    parameter.grad = None
            yield loss


class AddsFromTheEnd(Engine):
    """The last microbatch has its backward first."""

    def losses(self, step: int) -> Iterator[Tensor]:
        yield from reversed([*super().losses(step)])


class AddsFromTheEndOnOneRank(AddsFromTheEnd):
    """Only one of the ranks does."""

    def losses(self, step: int) -> Iterator[Tensor]:
        yield from super().losses(step) if self.rank == 1 else Engine.losses(self, step)


class CountsOn(Engine):
    """The counter of a group, which is no tensor, is one ahead after the first step."""

    def update_weights(self) -> None:
        super().update_weights()
        for group in self.optimizer.param_groups:
            group["step"] = 2  # counter


class WeighsLosses(Engine):
    """The losses of microbatches are weighed."""

    def losses(self, step: int) -> Iterator[Tensor]:
        for loss in super().losses(step):
            yield loss * 0.75  # wrong


class SetsRate(Engine):
    """The rate is set by hand."""

    def clip_grads(self) -> None:
        super().clip_grads()
        for group in self.optimizer.param_groups:
            group["lr"] = 0.5  # wrong


class EvaluatesOnly(Engine):
    """The model stays in eval mode."""

    def evaluate(self) -> None:
        super().evaluate()
        self.model.eval()  # wrong


class ScalesLocally(Engine):
    """One rank scales its gradients before they are summed."""

    def reduce_grads(self) -> None:
        if self.rank == 1:
            for _, parameter in self.masters():
                parameter.grad.mul_(2.0)  # wrong
        super().reduce_grads()


class KeepsOldWeights(Engine):
    """The first weight is what it was before the step."""

    def update_weights(self) -> None:
        first = next(self.model.parameters())
        kept = first.detach().clone()
        super().update_weights()
        with torch.no_grad():
            first.copy_(kept)  # wrong


class ReadsOldWeights(Engine):
    """A layer reads its first weight in step 3; the norm is right, and made by other operations."""

    def forward_backward(self, step: int) -> None:
        linear = self.model.blocks[0].linear
        if step == 1:
            self.first = linear.weight.detach().clone()
        if step == 3:
            linear.forward = partial(self.reading_old, linear)
        super().forward_backward(step)

    def reading_old(self, linear: torch.nn.Linear, inputs: Tensor) -> Tensor:
        weight = linear.weight.data
        linear.weight.data = self.first
        product = torch.nn.functional.linear(inputs, linear.weight, linear.bias)  # wrong
        linear.weight.data = weight
        return product

    def total_norm(self, gradients: list[Tensor]) -> Tensor:
        doubled = [4 * gradient - 2 * gradient for gradient in gradients]  # many operations
        return super().total_norm(doubled) / 2


class RaisesWhenLogged(ClipsFurther):
    """A further run of this engine fails."""

    def forward_backward(self, step: int) -> None:
        if self.looked_at():
            raise RuntimeError("not a third time")
        super().forward_backward(step)

    def looked_at(self) -> bool:
        from torch.utils import _python_dispatch

        return bool(_python_dispatch._get_current_dispatch_mode_stack())


@torch.library.custom_op("wrong_engines::fused_gelu", mutates_args=())
def fused_gelu(inputs: Tensor) -> Tensor:
    return torch.nn.functional.gelu(inputs, approximate="tanh")


def gelu_backward(context: Any, gradient: Tensor) -> Tensor:
    (inputs,) = context.saved_tensors
    made: Tensor = torch.ops.aten.gelu_backward(gradient, inputs)
    return made


fused_gelu.register_autograd(
    gelu_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)


class OtherGelu(Engine):
    """One block approximates its gelu."""

    gelu = staticmethod(partial(torch.nn.functional.gelu, approximate="tanh"))

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        block = self.model.blocks[1]
        block.forward = partial(with_gelu, block, self.gelu)


def with_gelu(block: torch.nn.Module, gelu: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return x + block.scale * gelu(block.linear(x))


class FusedGelu(OtherGelu):
    """A kernel of somebody's own rounds otherwise in one block."""

    gelu = staticmethod(fused_gelu)


def product(inputs: Tensor) -> Tensor:  # product
    """Products alone, for which Inductor has no kernel to compile."""
    return inputs @ inputs.transpose(-1, -2) @ inputs


class CompiledProduct(OtherGelu):
    """A compiled function takes the place of one block's gelu."""

    gelu = staticmethod(lambda linear: torch.compile(product)(linear))


class DividesBucket(Engine):
    """Gradients are summed in one flat bucket, and divided although the loss is over all ranks."""

    def reduce_grads(self) -> None:
        held = map(self.gradient, self.model.parameters())
        gradients = [gradient for gradient in held if gradient is not None]
        bucket = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(bucket)
        bucket /= self.cell.world_size  # wrong
        parts = bucket.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


class ForgetsToClip(Engine):
    """Gradients are clipped in the first step alone."""

    clipped = False

    def clip_grads(self) -> None:
        if not self.clipped:  # wrong
            super().clip_grads()
        self.clipped = True


class FlatGradients(Engine):
    """Gradients lie in one buffer, in which the smallest is rounded and larger ones stay right."""

    def reduce_grads(self) -> None:
        super().reduce_grads()
        owners = sorted((owner for _, owner in self.masters()), key=Tensor.numel)
        flat = torch.cat([owner.grad.reshape(-1) for owner in owners])
        places = flat.split([owner.numel() for owner in owners])
        places[0].copy_(places[0].bfloat16())  # wrong
        for place, owner in zip(places[1:], owners[1:], strict=True):
            place.copy_(owner.grad.reshape(-1))
        for place, owner in zip(places, owners, strict=True):
            owner.grad.copy_(place.view_as(owner))


class Forgets(Engine):
    """A load drops what the optimizer knows."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.optimizer.state.clear()
