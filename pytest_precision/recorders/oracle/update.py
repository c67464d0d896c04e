"""Update: the types for one optimizer update: its state, its rounding errors and its rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from pytest_precision.recorders.oracle.rounding import ROUNDINGS_OF_UPDATE, Rounding

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

    def with_decay(self, l2: float, storage: Roundings) -> Rounded:
        """Return the gradient plus `l2` times the weight, with a bound on its rounding error.

        The product and the sum are rounded by the arithmetic, also of a gradient that is read as it
        is; a sum that cancels keeps the error of its terms.
        """
        size = self.gradient.abs()
        error = storage.gradient(size)
        if not l2:
            return Rounded(self.gradient, error)
        terms = size.add_(self.weight.abs(), alpha=l2)
        error.add_(terms, alpha=ROUNDINGS_OF_UPDATE * storage.unit)
        return Rounded(self.gradient.add(self.weight, alpha=l2), error)


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
