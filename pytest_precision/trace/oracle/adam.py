"""Adam in exact arithmetic, and how far a step in the arithmetic of its storage may be from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from pytest_precision.trace.oracle.rounding import Rounding

_FLOAT32 = 2.0**-24
_TINY = 1e-300
"""Keeps a quotient finite in fp64; no storage has such small numbers."""


@dataclass(frozen=True, slots=True)
class AdamScalars:
    """The numbers of one step.

    Attributes:
        lr: learning rate.
        betas: decay of the moments.
        rests: `1 - beta` of each, as the arithmetic has it.
        corrections: divisor of each moment; 1 without bias correction.
        eps: term added to the denominator.
        decay: share of the weight that is removed.
        l2: factor of the weight in the gradient.
        slack: relative error of each correction.
        eps_in_root: whether eps is added to the second moment instead; no rule has it there.
    """

    lr: float
    betas: tuple[float, float]
    rests: tuple[float, float]
    corrections: tuple[float, float]
    eps: float
    decay: float
    l2: float = 0.0
    slack: tuple[float, float] = (0.0, 0.0)
    eps_in_root: bool = False

    @classmethod
    def of(
        cls, group: Mapping[str, Any], step: int, *, decoupled: bool, corrected: bool = True
    ) -> AdamScalars:
        """Return those of the step that makes the count `step`, computed in fp64."""
        first, second = (float(beta) for beta in group["betas"])
        lr, decay = float(group["lr"]), float(group["weight_decay"])
        return cls(
            lr,
            (first, second),
            (1 - first, 1 - second),
            (1 - first**step, 1 - second**step) if corrected else (1.0, 1.0),
            float(group["eps"]),
            lr * decay if decoupled else 0.0,
            0.0 if decoupled else decay,
        )

    def denominator(self, second: Tensor) -> Tensor:
        """Return the divisor of the corrected first moment, in place of `second`."""
        corrected = second.div_(self.corrections[1])
        if self.eps_in_root:
            return corrected.add_(self.eps).sqrt_()
        return corrected.sqrt_().add_(self.eps)

    def move(self, weight: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return how a weight moves by the moments after the step, in place of these; all fp64."""
        moved = first.div_(self.denominator(second)).mul_(-self.lr / self.corrections[0])
        return moved.add_(weight, alpha=-self.decay) if self.decay else moved


def in_fp64(group: Mapping[str, Any], step: int, *, decoupled: bool) -> AdamScalars:
    """Return scalars as torch has them, in Python's own precision."""
    return AdamScalars.of(group, step, decoupled=decoupled)


def in_tensors(group: Mapping[str, Any], step: int, *, decoupled: bool) -> AdamScalars:
    """Return scalars whose corrections are computed from an fp32 counter, a tensor, in fp32.

    The power of a rounded beta is off by `step * beta**step` unit roundoffs, and by two more of its
    own and of the difference.
    """
    exact = AdamScalars.of(group, step, decoupled=decoupled)
    errors = (
        (step * beta**step + 3) * _FLOAT32 / correction
        for beta, correction in zip(exact.betas, exact.corrections, strict=True)
    )
    return replace(exact, slack=(next(errors), next(errors)))


def in_fp32(group: Mapping[str, Any], step: int, *, decoupled: bool) -> AdamScalars:
    """Return scalars as Transformer Engine's kernel has them: fp32 betas, and `1 - beta` of these.

    Source: `csrc/multi_tensor/adam.cu`; the power is computed in fp64 and rounded once.
    """
    first, second = (float(np.float32(beta)) for beta in group["betas"])
    scalars = AdamScalars.of({**group, "betas": (first, second)}, step, decoupled=decoupled)
    return replace(scalars, rests=(float(np.float32(1 - first)), float(np.float32(1 - second))))


Scalars = Callable[..., AdamScalars]

ARITHMETICS: tuple[Scalars, ...] = (in_fp64, in_fp32, in_tensors)
"""The legitimate ways to compute the scalars of a step, the tightest first."""


class Rounded(NamedTuple):
    """An exact result and the largest error that rounding explains."""

    exact: Tensor
    bound: Tensor


class Roundings(NamedTuple):
    """The roundings of one parameter's state in one update.

    Attributes:
        first: of the first moment.
        second: of the second moment.
        weight: of the effective weight.
        gradient: of the gradient that the optimizer reads.
        move: of the update before it is added to the weight, where it is stored by itself.
    """

    first: Rounding
    second: Rounding
    weight: Rounding
    gradient: Rounding
    move: Rounding


class State(NamedTuple):
    """What a step starts from; all fp64.

    Attributes:
        first: the first moment.
        second: the second moment.
        weight: the effective weight.
        gradient: the gradient that the optimizer reads, unrounded.
    """

    first: Tensor
    second: Tensor
    weight: Tensor
    gradient: Tensor


def stepped(old: State, s: AdamScalars, storage: Roundings) -> tuple[Rounded, Rounded, Rounded]:
    """Return both moments and the weight after one step, each with its bound.

    Derivation: each term of a sum carries the rounding of its operations (`Rounding`), and what its
    operands carry is propagated to first order; the quotient, whose divisor may be as small as its
    own error, by its value where the numerator is largest and the divisor smallest.
    """
    weight, gradient = old.weight, old.gradient
    if s.l2:
        gradient = gradient.add(weight, alpha=s.l2)
    error = storage.gradient(old.gradient.abs().add_(weight.abs(), alpha=s.l2))
    size = gradient.abs()
    first = old.first.mul(s.betas[0]).add_(gradient, alpha=s.rests[0])
    terms = old.first.abs().mul_(s.betas[0]).add_(size, alpha=s.rests[0])
    first_bound = storage.first(terms).add_(error, alpha=s.rests[0])
    second = old.second.mul(s.betas[1]).addcmul_(gradient, gradient, value=s.rests[1])
    second_bound = storage.second(second.abs())
    second_bound.addcmul_(size.mul_(2).add_(error), error, value=s.rests[1])
    after = weight + s.move(weight, first.clone(), second.clone())
    bound = _weight_bound(weight, (first, first_bound), (second, second_bound), s, storage)
    return (
        Rounded(first, first_bound),
        Rounded(second, second_bound),
        Rounded(after, bound),
    )


def _weight_bound(
    weight: Tensor,
    first: tuple[Tensor, Tensor],
    second: tuple[Tensor, Tensor],
    s: AdamScalars,
    storage: Roundings,
) -> Tensor:
    """Return the bound of the weight from values and bounds of the moments."""
    size = first[0].abs()
    exact = size / s.denominator(second[0].clone()).clamp_(min=_TINY)
    lowest = s.denominator((second[0] - second[1]).clamp_(min=0).mul_(1 - s.slack[1]))
    arithmetic = storage.second
    lowest.mul_(1 - 4 * arithmetic.unit)
    if arithmetic.unit > _FLOAT32:  # fp16 has no 1e-8
        lowest.sub_(arithmetic.least)
    largest = size.add_(first[1]).div_(lowest.clamp_(min=_TINY)).mul_(1 + s.slack[0])
    scale = s.lr / s.corrections[0]
    bound = storage.weight(weight.abs().add_(exact, alpha=scale))
    bound.add_(exact, alpha=scale * storage.move.share)
    return bound.add_(largest.sub_(exact), alpha=scale)
