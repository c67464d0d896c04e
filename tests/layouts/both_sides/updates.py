"""Defects of updates: clipping, rates, masters and the loss scale."""

from __future__ import annotations

from typing import Any

import torch
from catalogue import (
    contradicts,
    wrong_gradient,
    wrong_update,
)
from torch import Tensor

from both_sides.entries import (
    HALF,
    MASTERS,
    Named,
    of,
)
from pytest_precision.layouts.replicated import MasterEngine


class Clips(Named):
    """Clips in a way of its own, by the right norm."""

    def how(self, gradients: list[Tensor], limit: float) -> None:
        raise NotImplementedError

    def clip_grads(self) -> None:
        limit, self.max_norm = self.max_norm, None
        super().clip_grads()
        self.max_norm = limit
        self.how([*self.gradients.values()], limit)


@of("clipping", wrong_update(1, "exp_avg", "reader.weight", "gradients are not clipped"))
class NoClip(Clips):
    def how(self, gradients: list[Tensor], limit: float) -> None:
        pass


@of("clipping", wrong_update(1, "exp_avg", "reader.weight"))
class ClipsEach(Clips):
    def how(self, gradients: list[Tensor], limit: float) -> None:
        for gradient in gradients:
            gradient.mul_(min(1.0, limit / float(gradient.norm())))


@of("clipping", wrong_update(1, "exp_avg", "reader.weight"))
class ClipsToTwice(Clips):
    def how(self, gradients: list[Tensor], limit: float) -> None:
        for gradient in gradients:
            gradient.mul_(2 * limit / self.grad_norm)


@of("clipping", contradicts(1, "grad_norm", "total", "the norm of reduced_grad", factor=0.3762))
class NormOfOne(Named):
    def total_norm(self, gradients: list[Tensor]) -> Tensor:
        return super().total_norm(gradients[:1])


class Rates(Named):
    """Updates with other rates."""

    def rate(self, number: int, group: dict[str, Any]) -> float:
        raise NotImplementedError

    def update_weights(self) -> None:
        groups = self.optimizer.param_groups
        kept = [group["lr"] for group in groups]
        wrong = [self.rate(number, group) for number, group in enumerate(groups)]
        for group, lr in zip(groups, wrong, strict=True):
            group["lr"] = lr
        super().update_weights()
        for group, lr in zip(groups, kept, strict=True):
            group["lr"] = lr


@of(
    "lr",
    wrong_update(
        1, "master", "temperature", "the learning rate is that of another parameter group"
    ),
)
class OneRate(Rates):
    def rate(self, number: int, group: dict[str, Any]) -> float:
        return float(self.optimizer.param_groups[0]["lr"])


@of("lr", wrong_update(1, "master", "reader.weight"))
class FullRate(Rates):
    def rate(self, number: int, group: dict[str, Any]) -> float:
        return float(group["initial_lr"])


@of("lr", wrong_update(1, "master", "reader.weight"))
class ThreeTimes(Rates):
    def rate(self, number: int, group: dict[str, Any]) -> float:
        return 3 * float(group["lr"])


@of("lr", wrong_update(2, "master", "reader.weight"))
class ScheduledTwice(Named):
    def update_weights(self) -> None:
        super().update_weights()
        self.scheduler.step()


@of("masters", wrong_update(1, "master", "reader.weight", "the weight is rounded to bf16"), MASTERS)
class RoundsMasters(MasterEngine):
    @torch.no_grad()
    def update_weights(self) -> None:
        super().update_weights()
        for master in self.master_model.parameters():
            master.copy_(master.bfloat16())


@of("masters", contradicts(1, "param", "temperature", "its master", factor=1.011), MASTERS)
class OneStays(MasterEngine):
    """One weight is not copied from its master."""

    @torch.no_grad()
    def _round_masters(self) -> None:
        kept = next(self.model.parameters()).clone()
        super()._round_masters()
        next(self.model.parameters()).copy_(kept)


@of("masters", wrong_update(1, "exp_avg", "reader.weight"), MASTERS)
class GradientsInBf16Twice(MasterEngine):
    """Masters get the gradient twice."""

    def clip_grads(self) -> None:
        super().clip_grads()
        for _, master in self._pairs():
            if master.grad is not None:
                master.grad.mul_(2)


@of(
    "scaling",
    contradicts(1, "grad_norm", "total", "the norm of reduced_grad", factor=0.0002441),
    HALF,
)
class UnscaledTwice(Named):
    def clip(self, owners: list[Tensor]) -> None:
        for owner in owners:
            owner.grad.div_(self.scaler.scale)
        super().clip(owners)


@of(
    "scaling",
    contradicts(1, "loss_scale", "good_steps", "what its rule makes of it", factor=0),
    HALF,
)
class NeverGrows(Named):
    def optimizer_step(self) -> None:
        super().optimizer_step()
        self.scaler.scale, self.scaler.good_steps = 2.0**12, 0


@of("scaling", wrong_gradient(1, "grad", "temperature", "microbatch 0 is left out"), HALF)
class ScaledLate(Named):
    """The loss of the first microbatch is not scaled."""

    def backward(self, loss: Tensor) -> None:
        super().backward(loss / (self.scaler.scale if self.microbatch == 0 else 1))
