"""Layouts with one error each, to see what a failure calls it; ranks import them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from both_sides import ENTRIES
from torch import Tensor

from pytest_precision import Cell, Engine, Workload, layouts

ERRORS: dict[str, type[Engine]] = {
    name: ENTRIES[name].kind
    for name in ("LocalTokens", "MeanOfMeans", "NeverZeroed", "RepeatsFirst")
}
"""Engines by name; those that both sides may have, too, are defined there."""


def error(kind: type[Engine]) -> type[Engine]:
    """Make an engine known by its name."""
    ERRORS[kind.__name__] = kind
    return kind


def planted(workload: Workload, cell: Cell, *, error: str, factor: float = 1.0) -> Engine:
    """Replicated AdamW with an error, in the precision of the cell."""
    model, compute = layouts.resident(workload.model(cell), cell)
    optimizer = torch.optim.AdamW(workload.groups(model))
    forward_model = layouts.compute_in(model, compute)
    engine = ERRORS[error](workload, cell, model, optimizer, forward_model=forward_model)
    engine.factor = factor
    return engine


class Factored(Engine):
    """Has a number that says how large its error is."""

    factor: float = 1.0

    @property
    def weights(self) -> list[Tensor]:
        """The weights that are updated, by size."""
        return [weight for _, weight in self.masters() if weight.grad is not None]

    @property
    def matrix(self) -> Tensor:
        """The largest weight that is a matrix."""
        return max((w for w in self.weights if w.dim() == 2), key=Tensor.numel)


@error
class ScaledLoss(Factored):
    """The loss that goes backward is multiplied; the one that is reported is right."""

    def backward(self, loss: Tensor) -> None:
        super().backward(loss * self.factor)


@error
class ScaledGradients(Factored):
    """Gradients are multiplied after the reduction."""

    def reduce_grads(self) -> None:
        super().reduce_grads()
        for weight in self.weights:
            weight.grad.mul_(self.factor)


@error
class ReportedLoss(Factored):
    """The loss that is reported is multiplied."""

    def report_loss(self, number: int, loss: Tensor) -> None:
        super().report_loss(number, loss * self.factor)


@error
class ReportedNorm(Factored):
    """The norm that is reported is multiplied."""

    def clip_grads(self) -> None:
        super().clip_grads()
        self.grad_norm = self.grad_norm * self.factor


@error
class DropsOne(Factored):
    """The first microbatch has no backward."""

    def backward(self, loss: Tensor) -> None:
        super().backward(loss * (self.microbatch != 0))


@error
class Transposed(Factored):
    """One gradient is that of the transposed weight."""

    def reduce_grads(self) -> None:
        super().reduce_grads()
        self.matrix.grad = self.matrix.grad.T.reshape(self.matrix.shape).contiguous()


@error
class OtherRows(Factored):
    """The rows of one gradient are in another order."""

    def reduce_grads(self) -> None:
        super().reduce_grads()
        self.matrix.grad = self.matrix.grad.roll(1, 0)


@error
class ReducedInBf16(Factored):
    """Gradients are rounded to bf16 before they are summed over the ranks."""

    def reduce_grads(self) -> None:
        for weight in self.weights:
            rounded = weight.grad.bfloat16()
            dist.all_reduce(rounded)
            weight.grad.copy_(rounded)


@error
class LastInBf16(Factored):
    """Gradients are stored as bf16 after the reduction."""

    def reduce_grads(self) -> None:
        super().reduce_grads()
        for weight in self.weights:
            weight.grad.copy_(weight.grad.bfloat16())


class Moved(Factored):
    """Changes what its update has done to the weights."""

    def moved(self, before: Tensor, after: Tensor) -> Tensor:
        raise NotImplementedError

    @torch.no_grad()
    def update_weights(self) -> None:
        before = [weight.clone() for weight in self.weights]
        super().update_weights()
        for weight, old in zip(self.weights, before, strict=True):
            weight.copy_(self.moved(old, weight))


@error
class Multiplied(Moved):
    """Weights move by a multiple of what they should."""

    def moved(self, before: Tensor, after: Tensor) -> Tensor:
        return before + (after - before) * self.factor


@error
class TailStays(Moved):
    """The last elements of each weight stay as they were."""

    def moved(self, before: Tensor, after: Tensor) -> Tensor:
        kept = after.clone().view(-1)
        stop = len(kept) - len(kept) // 3
        kept[stop:] = before.reshape(-1)[stop:]
        return kept.view_as(after)


@error
class CounterStays(Factored):
    """The optimizer's count of steps is set back after the update."""

    def update_weights(self) -> None:
        super().update_weights()
        for state in self.optimizer.state.values():
            state["step"] -= 1


@error
class CountsTwice(Factored):
    """The optimizer counts two steps for one."""

    def update_weights(self) -> None:
        super().update_weights()
        for state in self.optimizer.state.values():
            state["step"] += 1


@error
class OtherRate(Factored):
    """The rate of the first group is that of the last one."""

    def clip_grads(self) -> None:
        super().clip_grads()
        groups = self.optimizer.param_groups
        groups[0]["lr"] = groups[-1]["lr"]


@error
class EarlyRate(Factored):
    """The scheduler makes its step before the update."""

    def clip_grads(self) -> None:
        super().clip_grads()
        self.scheduler.step()


@error
class Unscaled(Factored):
    """The loss scale stays in the gradients that are reduced, or is taken out too early."""

    def reduce_grads(self) -> None:
        super().reduce_grads()
        for weight in self.weights:
            weight.grad.mul_(self.scaler.scale**self.factor)
