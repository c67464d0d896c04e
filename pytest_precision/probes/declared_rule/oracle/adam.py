"""Compute Adam's update in fp64, with a bound on the rounding error of the stored result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import nan, sqrt

import numpy as np
from torch import Tensor

from pytest_precision.probes.declared_rule.oracle.claims import ADAM_CLASSES
from pytest_precision.probes.declared_rule.oracle.update import (
    FLOAT32,
    Formula,
    GroupNumbers,
    Rounded,
    Roundings,
    ScalarsOfStep,
    State,
    UpdateScalars,
)

ADAM_NUMBERS = ("lr", "betas", "eps", "weight_decay")
"""What a group of Adam has."""

_TINY = 1e-300
"""Keeps a quotient finite in fp64; no storage has such small numbers."""


@dataclass(frozen=True, slots=True)
class AdamScalars:
    """The scalars of one Adam step, such as the learning rate and bias corrections.

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
        cls, group: GroupNumbers, step: int, *, decoupled: bool, corrected: bool = True
    ) -> AdamScalars:
        """Return the scalars of the update that advances the step counter to `step`."""
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

    @property
    def root(self) -> float:
        """Return the root of the second correction; NaN for a beta that a fit tries beyond 1."""
        return sqrt(self.corrections[1]) if self.corrections[1] >= 0 else nan

    @property
    def rate(self) -> float:
        """Return the factor of the quotient of the first moment and `divisor` in an update."""
        return self.lr / self.corrections[0] * self.root

    def divisor(self, second: Tensor) -> Tensor:
        """Return the denominator of Adam's update times the root of the second correction.

        So the correction is a factor of two numbers, not of each element.
        """
        if self.eps_in_root:
            return second.add(self.eps * self.corrections[1]).sqrt_()
        return second.sqrt().add_(self.eps * self.root)

    def move(self, weight: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return the weight's update from the new moments; it overwrites the first one."""
        moved = first.div_(self.divisor(second)).mul_(-self.rate)
        return moved.add_(weight, alpha=-self.decay) if self.decay else moved

    def stepped(self, old: State, storage: Roundings) -> tuple[Rounded, Rounded, Rounded]:
        """Return both moments and the weight after one step, each with a rounding error bound.

        It computes in the memory of the old moments.

        Derivation: each term of a sum carries the rounding of its operations (`Rounding`), and what
        its operands carry is propagated to first order; the quotient, whose divisor may be as small
        as its own error, by its value where the numerator is largest and the divisor smallest.
        """
        gradient, size, error = old.with_decay(self.l2, storage)
        old_first, old_second = old.moments
        share, least = storage.moments[0].share, storage.moments[0].least
        first = old_first.mul(self.betas[0]).add_(gradient, alpha=self.rests[0])
        first_bound = old_first.abs_().mul_(share * self.betas[0])
        first_bound.add_(size, alpha=share * self.rests[0]).add_(error, alpha=self.rests[0])
        first_bound.add_(least)
        second = old_second.mul_(self.betas[1]).addcmul_(gradient, gradient, value=self.rests[1])
        second_bound = storage.moments[1](second.abs())
        second_bound.addcmul_(error.add(size, alpha=2), error, value=self.rests[1])
        quotient = first / self.divisor(second)
        moments = Rounded(first, first_bound), Rounded(second, second_bound)
        bound = self._weight_bound(old.weight, *moments, quotient.abs(), storage)
        moved = quotient.mul_(-self.rate).add_(old.weight, alpha=1 - self.decay)
        return *moments, Rounded(moved, bound)

    def _weight_bound(
        self,
        weight: Tensor,
        first: Rounded,
        second: Rounded,
        exact: Tensor,
        storage: Roundings,
    ) -> Tensor:
        """Return a bound on the stored weight's error from those of the moments.

        Args:
            weight: before the step.
            first: moment after it.
            second: moment after it.
            exact: magnitude of the quotient of the first and the `divisor`.
            storage: roundings of the state.
        """
        least_second = (second.exact - second.bound).clamp_(min=0)
        lowest = self.divisor(least_second.mul_(1 - self.slack[1]))
        arithmetic, rounding, rate = storage.moments[1], storage.weight, self.rate
        lowest.mul_(1 - 4 * arithmetic.unit)
        if arithmetic.unit > FLOAT32:  # fp16 has no 1e-8
            lowest.sub_(arithmetic.least * self.root)
        largest = first.exact.abs().add_(first.bound).div_(lowest.clamp_(min=_TINY))
        bound = weight.abs().mul_(rounding.share).add_(rounding.least)
        # The largest quotient less the exact one, beside what is rounded of a move and of its sum.
        bound.add_(largest, alpha=rate * (1 + self.slack[0]))
        return bound.add_(exact, alpha=rate * (rounding.share + storage.move.share - 1))


def in_tensors(group: GroupNumbers, step: int, *, decoupled: bool) -> AdamScalars:
    """Return Adam's scalars from a step counter in an fp32 tensor, with bounds on their errors.

    The power of a rounded beta is off by `step * beta**step` unit roundoffs, and by two more of its
    own and of the difference.
    """
    exact = AdamScalars.of(group, step, decoupled=decoupled)
    errors = (
        (step * beta**step + 3) * FLOAT32 / correction
        for beta, correction in zip(exact.betas, exact.corrections, strict=True)
    )
    return replace(exact, slack=(next(errors), next(errors)))


def adam_in_fp32(group: GroupNumbers, step: int, *, decoupled: bool) -> AdamScalars:
    """Return Adam's scalars as Transformer Engine's kernel computes them, from fp32 betas.

    Source: `csrc/multi_tensor/adam.cu`; the power is computed in fp64 and rounded once.
    """
    first, second = (float(np.float32(beta)) for beta in group["betas"])
    scalars = AdamScalars.of({**group, "betas": (first, second)}, step, decoupled=decoupled)
    return replace(scalars, rests=(float(np.float32(1 - first)), float(np.float32(1 - second))))


def adam_formula(*, decoupled: bool) -> Formula:
    """Return Adam's update rule, with decoupled weight decay or with L2 regularisation.

    Its scalars are torch's, in Python's own precision, those of fp32 kernels, and those of counters
    that are tensors.
    """
    ways = AdamScalars.of, adam_in_fp32, in_tensors
    return Formula(
        ADAM_NUMBERS,
        ADAM_CLASSES,
        ("exp_avg", "exp_avg_sq"),
        tuple(partial(way, decoupled=decoupled) for way in ways),
        partial(_wrong, decoupled=decoupled),
    )


def _wrong(
    group: GroupNumbers, step: int, arithmetic: ScalarsOfStep, full_rate: float, *, decoupled: bool
) -> Iterator[tuple[str, UpdateScalars]]:
    """Yield known mistakes of an Adam step: each in words, with the scalars that it leads to."""
    right: AdamScalars = arithmetic(group, step)
    yield "eps is added inside the root", replace(right, eps_in_root=True)
    decay = float(group["weight_decay"])
    if decay and decoupled:
        words = "weight decay is part of the gradient (L2), not decoupled"
        yield words, replace(right, decay=0.0, l2=decay)
        words = "weight decay is scaled by the full learning rate, not by the step's"
        yield words, replace(right, decay=full_rate * decay)
    elif decay:
        words = "weight decay is decoupled, not part of the gradient (L2)"
        yield words, replace(right, decay=right.lr * decay, l2=0.0)
    if decay:
        yield "there is no weight decay", replace(right, decay=0.0, l2=0.0)
    yield "moments are not corrected for bias", replace(right, corrections=(1.0, 1.0))
    for other, which in ((step + 1, "one more"), (step - 1, "one less")):
        if other:
            yield f"steps are counted as {which} than were made", arithmetic(group, other)
