"""Types for one optimizer update: the state before it, its rounding errors and its rule.

Author: the standard model of floating-point arithmetic (Higham, Accuracy and Stability of Numerical
Algorithms, section 2.2): every operation returns the exact result times `1 + d` with `|d| <= u`,
the unit roundoff of the dtype that the result is stored in, plus half a subnormal where it
underflows. Optimizers that work in place round each intermediate result to the dtype of their
state, so an update of n operations is off by n times u of the sum of the magnitudes of its terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

ROUNDINGS_OF_UPDATE = 4
"""Roundings of one moment, or of one weight, in an update: two products, their sum and a cast."""

FLOAT32 = 2.0**-24
"""Unit roundoff of fp32."""

_FINEST = 2.0**-48
"""What the oracle's own fp64 arithmetic is trusted to."""

CODING = 3
"""Roundings of coding by a scale: its reciprocal, the product with it, the product of decoding."""

_SCALED = {torch.uint8: (2.0**-3, 2.0**-9), torch.float16: (2.0**-10, 2.0**-24)}
"""Dtype of state with a scale to the distance of neighbours, relative and of subnormals; a uint8 is
e4m3."""


class Rounding(NamedTuple):
    """A bound on the rounding error of one stored tensor in one update.

    Attributes:
        share: of the sum of the magnitudes of the terms.
        least: in addition, where the result underflows.
        unit: unit roundoff of the arithmetic.
    """

    share: float
    least: float
    unit: float

    @classmethod
    def of(cls, dtype: torch.dtype, scale: Tensor | None = None) -> Rounding:
        """Return the error bound of a tensor in `dtype`, with or without a quantization scale.

        What has a scale is computed in fp32, coded, and stored once. Nothing says that this one
        rounding is to nearest: one that truncates, or rounds at random, is off by up to the
        distance of two neighbours, twice the unit roundoff.
        """
        if scale is not None:
            distance, subnormal = _SCALED[dtype]
            share = distance + (ROUNDINGS_OF_UPDATE + CODING) * FLOAT32
            return cls(share, float(scale) * subnormal, FLOAT32)
        return _unscaled(dtype)

    def twice(self) -> Rounding:
        """Return the error bound for a result that is rounded twice in a row."""
        return Rounding(2 * self.share, 2 * self.least, self.unit)

    def __call__(self, size: Tensor) -> Tensor:
        """Return the error bound of a sum whose terms' magnitudes add up to `size`."""
        return size.mul(self.share).add_(self.least)


@cache
def _unscaled(dtype: torch.dtype) -> Rounding:
    unit = torch.finfo(dtype).eps / 2 if dtype.is_floating_point else FLOAT32  # of integer codes
    unit = max(unit, _FINEST)
    # A GPU may flush subnormals of the exponent range of fp32 to zero.
    underflow = 2.0**-24 if dtype is torch.float16 else 2.0**-126
    return Rounding(ROUNDINGS_OF_UPDATE * unit, underflow, unit)


NO_ROUNDING = Rounding(0.0, 0.0, 0.0)
"""What is not rounded at all."""

GroupNumbers = Mapping[str, Any]
"""The hyperparameters of a parameter group."""


class Rounded(NamedTuple):
    """An exact fp64 result, and a bound on the rounding error of the stored one."""

    exact: Tensor
    bound: Tensor


class Roundings(NamedTuple):
    """The rounding errors of a parameter's moments, weight and gradient in one update.

    Attributes:
        moments: of each of the rule's moments.
        weight: of the effective weight.
        gradient: of the gradient that the optimizer reads.
        move: of the update before it is added to the weight, where it is stored by itself.
    """

    moments: tuple[Rounding, ...]
    weight: Rounding
    gradient: Rounding
    move: Rounding

    @property
    def unit(self) -> float:
        """Return the unit roundoff of the arithmetic on gradients and weights."""
        return max(self.weight.unit, self.gradient.unit)


class State(NamedTuple):
    """The moments, weight and gradient of one tensor before an optimizer step.

    Attributes:
        moments: the rule's, in its order.
        weight: the effective weight.
        gradient: the gradient that the optimizer reads, unrounded.
    """

    moments: tuple[Tensor, ...]
    weight: Tensor
    gradient: Tensor

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> State:
        """Return a state from a list of its moments, its weight and its gradient."""
        *moments, weight, gradient = tensors
        return cls(tuple(moments), weight, gradient)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return the moments, the weight and the gradient as one tuple."""
        return *self.moments, self.weight, self.gradient

    def with_decay(self, l2: float, storage: Roundings) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradient plus `l2` times the weight, its magnitude, and an error bound.

        The product and the sum are rounded by the arithmetic, also of a gradient that is read as it
        is; a sum that cancels keeps the error of its terms.
        """
        size = self.gradient.abs()
        error = storage.gradient(size)
        if not l2:
            return self.gradient, size, error
        terms = size.add_(self.weight.abs(), alpha=l2)
        error.add_(terms, alpha=ROUNDINGS_OF_UPDATE * storage.unit)
        gradient = self.gradient.add(self.weight, alpha=l2)
        return gradient, gradient.abs(), error


class UpdateScalars(Protocol):
    """The scalars of one step of an optimizer, and how its result is computed from them."""

    def stepped(self, old: State, storage: Roundings) -> tuple[Rounded, ...]:
        """Return the moments and the weight after the step, each with an error bound.

        Args:
            old: before the step, fp64.
            storage: how each is rounded.
        """


ScalarsOfStep = Callable[[GroupNumbers, int], Any]
"""Makes the `UpdateScalars` of a group's step that makes the count of steps the number."""


WrongFormulas = Callable[
    [GroupNumbers, int, ScalarsOfStep, float], Iterator[tuple[str, UpdateScalars]]
]
"""Yields, in words, wrong formulas with the right numbers. It takes those of a group, the count of
steps that the step makes, how its scalars are computed, and the rate before the scheduler's."""


class Formula(NamedTuple):
    """An optimizer's update rule (Adam or SGD): its options, state, arithmetic and known mistakes.

    Attributes:
        numbers: the options of a parameter group that a rule has.
        classes: names of the optimizer classes that promise to follow this rule.
        moments: names of the state that it keeps, in causal order.
        arithmetics: the legitimate ways to compute the scalars of a step, the tightest first.
        wrong: see `WrongFormulas`.
    """

    numbers: tuple[str, ...]
    classes: tuple[str, ...]
    moments: tuple[str, ...]
    arithmetics: tuple[ScalarsOfStep, ...]
    wrong: WrongFormulas
