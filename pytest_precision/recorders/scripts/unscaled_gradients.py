"""Unscaled gradients: those that a loss scaler has divided by its scale, and must not divide again.

A scaler refuses to divide twice before its `update`. It does so all the same where a loop updates
it before the step, or after each microbatch. Adam hides this, since it divides by the size of the
gradient. A gradient is followed until its optimizer has had its step, or the loop has zeroed it,
replaced it, or made it larger, which may be the scale once more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from pytest_precision._torch.dispatch import version
from pytest_precision.recorders.scripts.old_gradients import OldGradient, has_plain_values


@dataclass
class UnscaledGradient:
    """A gradient that has been divided.

    Attributes:
        parameter: whose gradient it is.
        gradient: the tensor itself.
        norm: of what the division has left.
        followed: sees what backwards add to it, from the first one on.
    """

    parameter: Tensor
    gradient: Tensor
    norm: float
    followed: OldGradient | None = None

    @property
    def is_left(self) -> bool:
        """Whether it is in the gradient that the parameter has; a clip makes it no larger."""
        if self.followed is not None:
            return self.followed.added and self.parameter.grad is self.followed.gradient
        return self.parameter.grad is self.gradient and 0 < float(self.gradient.norm()) <= self.norm


class UnscaledGradients:
    """Follows the gradients that scalers have divided."""

    def __init__(self) -> None:
        self._unscaled: dict[int, UnscaledGradient] = {}

    def unscaled(self, parameters: Iterable[Tensor]) -> None:
        """Follow gradients that have just been divided."""
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is not None and has_plain_values(gradient):
                norm = float(gradient.norm())
                self._unscaled[id(parameter)] = UnscaledGradient(parameter, gradient, norm)

    def backward(self) -> None:
        """See what the backward that begins adds to; forget what is left nowhere."""
        for key, one in [*self._unscaled.items()]:
            if one.followed is not None:
                continue
            if one.is_left:
                one.followed = OldGradient(one.parameter, one.gradient, version(one.gradient))
                one.followed.follow()
            else:
                del self._unscaled[key]

    def taken(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """Follow these no more; return those in whose gradient a divided one is left."""
        found = [self._unscaled.pop(id(own), None) for own in parameters]
        left = [one.parameter for one in found if one is not None and one.is_left]
        for one in found:
            if one is not None and one.followed is not None:
                one.followed.forget()
        return left

    def close(self) -> None:
        """Take back all hooks."""
        self.taken([one.parameter for one in self._unscaled.values()])
