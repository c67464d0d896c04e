"""Compute SGD's update in fp64, with a bound on the rounding error of the stored result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from torch import Tensor

from pytest_precision.probes.declared_rule.oracle.claims import SGD_CLASSES
from pytest_precision.probes.declared_rule.oracle.update import (
    ROUNDINGS_OF_UPDATE,
    Formula,
    GroupNumbers,
    Rounded,
    Roundings,
    ScalarsOfStep,
    State,
    UpdateScalars,
)

SGD_NUMBERS = ("lr", "momentum", "dampening", "weight_decay", "nesterov")
"""What a group of SGD has."""


@dataclass(frozen=True, slots=True)
class SgdScalars:
    """The scalars of one SGD step, such as the learning rate and momentum.

    Attributes:
        lr: factor of the direction.
        momentum: share of the buffer that is kept; 0 without a buffer.
        rest: share of the gradient that the buffer takes; all of it in the first step.
        l2: factor of the weight in the gradient.
        nesterov: whether the direction is the gradient and the buffer, not the buffer alone.
        decay: share of the weight that is removed; no rule removes any.
    """

    lr: float
    momentum: float
    rest: float
    l2: float
    nesterov: bool
    decay: float = 0.0

    @classmethod
    def of(cls, group: GroupNumbers, step: int) -> SgdScalars:
        """Return the scalars of the update that advances the step counter to `step`."""
        momentum = float(group["momentum"])
        rest = 1.0 if step == 1 else 1 - float(group["dampening"])
        decay = float(group["weight_decay"])
        return cls(float(group["lr"]), momentum, rest, decay, bool(group["nesterov"]))

    def direction(self, gradient: Tensor, buffer: Tensor | None) -> Tensor:
        """Return the direction that, times the learning rate, is subtracted from the weight.

        Args:
            gradient: with the weight's share in it, fp64.
            buffer: after the step, fp64; None without momentum.
        """
        if buffer is None:
            return gradient
        return gradient.add(buffer, alpha=self.momentum) if self.nesterov else buffer

    def move(self, weight: Tensor, gradient: Tensor, buffer: Tensor | None) -> Tensor:
        """Return the update of a weight, fp64, from its gradient and new momentum buffer."""
        gradient = gradient.add(weight, alpha=self.l2)
        return self.direction(gradient, buffer).mul(-self.lr).add_(weight, alpha=-self.decay)

    def stepped(self, old: State, storage: Roundings) -> tuple[Rounded, ...]:
        """Return momentum buffer and weight after one step, each with a rounding error bound.

        Each term of a sum carries the rounding of its operations, and what its operands carry.
        """
        gradient, size, error = old.with_decay(self.l2, storage)
        moments: tuple[Rounded, ...] = ()
        direction, off = gradient, error
        if old.moments:
            (buffer,), (stored,) = old.moments, storage.moments
            after = buffer.mul(self.momentum).add_(gradient, alpha=self.rest)
            terms = buffer.abs().mul_(self.momentum).add_(size, alpha=self.rest)
            bound = stored(terms).add_(error, alpha=self.rest)
            moments = (Rounded(after, bound),)
            direction, off = self.direction(gradient, after), bound
            if self.nesterov:
                terms = size.add(after.abs(), alpha=self.momentum)
                off = bound.mul(self.momentum).add_(error)
                off.add_(terms, alpha=ROUNDINGS_OF_UPDATE * storage.unit)
        weight = old.weight.mul(1 - self.decay).sub_(direction, alpha=self.lr)
        size = direction.abs()
        limit = storage.weight(old.weight.abs().add_(size, alpha=self.lr))
        limit.add_(size.mul_(storage.move.share).add_(off), alpha=self.lr)
        return *moments, Rounded(weight, limit)


def sgd_in_fp32(group: GroupNumbers, step: int) -> SgdScalars:
    """Return SGD's scalars with `1 - dampening` rounded to fp32."""
    dampening = float(np.float32(group["dampening"]))
    scalars = SgdScalars.of(group, step)
    return scalars if step == 1 else replace(scalars, rest=float(np.float32(1 - dampening)))


def sgd_formula(*, momentum: bool) -> Formula:
    """Return SGD's update rule, with or without momentum."""
    return Formula(
        SGD_NUMBERS,
        SGD_CLASSES,
        ("momentum_buffer",) if momentum else (),
        (SgdScalars.of, sgd_in_fp32),
        partial(_wrong, momentum=momentum),
    )


def _wrong(
    group: GroupNumbers, step: int, arithmetic: ScalarsOfStep, _full_rate: float, *, momentum: bool
) -> Iterator[tuple[str, UpdateScalars]]:
    """Yield known mistakes of an SGD step: each in words, with the scalars that it leads to."""
    right: SgdScalars = arithmetic(group, step)
    if right.l2:
        words = "weight decay is decoupled, not part of the gradient (L2)"
        yield words, replace(right, decay=right.lr * right.l2, l2=0.0)
        yield "there is no weight decay", replace(right, l2=0.0)
    if not momentum:
        return
    words = "the momentum is not Nesterov's" if right.nesterov else "the momentum is Nesterov's"
    yield words, replace(right, nesterov=not right.nesterov)
    if group["dampening"]:
        yield "gradients are not dampened", replace(right, rest=1.0)
        rest = 1 - float(group["dampening"])
        yield "the first gradient is dampened, too", replace(right, rest=rest)
    words = "the learning rate is a factor in the momentum buffer, not of it"
    yield words, replace(right, lr=1.0, rest=right.rest * right.lr)
