"""Detect gradients that a loop fails to zero, or unscales twice.

A gradient is followed from where it was made until its optimizer has had its step, or the loop has
changed it on purpose: scaled it, zeroed it in place, or given the parameter another tensor. So only
those are followed that are as they were when a backward begins, and a right loop has none.

- Old ones: an optimizer has read them. If the backward of a later step adds to one, and the
  optimizer reads the sum, nobody has zeroed it.
- Unscaled ones: a loss scaler has divided them by its scale, and must not divide them again. A
  scaler refuses to divide twice before its `update`. It does so all the same where a loop updates
  it before the step, or after each microbatch. Adam hides this, since it divides by the size of the
  gradient. A gradient that has become larger may have been multiplied by the scale once more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from pytest_precision._torch.dispatch import version
from pytest_precision.ranks.state.accelerator import capturing


def has_plain_values(tensor: Tensor | None) -> bool:
    """Return whether a tensor is a plain dense one, neither sharded, sparse nor a subclass.

    Its values can be read without a collective or a conversion.
    """
    if type(tensor) not in (Tensor, nn.Parameter):
        return False
    assert tensor is not None
    return tensor.layout == torch.strided and not tensor.is_nested and not tensor.is_meta


@dataclass
class FollowedGradient:
    """A parameter's gradient that is watched from one backward to the next.

    Attributes:
        parameter: whose gradient it is.
        gradient: the tensor itself, which new gradients are added to in place.
        norm: that it must not exceed until a backward adds to it; None if nothing may write to it.
        version: counts what has changed it, up to the optimizer, or the last backward.
        added: whether a backward has added to it as it was.
        handles: of the hooks that see what a backward adds.
    """

    parameter: Tensor
    gradient: Tensor
    norm: float | None
    version: int
    added: bool = False
    handles: list[RemovableHandle] = field(default_factory=list)

    @property
    def is_there(self) -> bool:
        """Whether `grad` is the watched tensor, not zero, and unwritten (or within `norm`)."""
        if self.norm is None:
            return self._is_untouched
        return self.parameter.grad is self.gradient and 0 < float(self.gradient.norm()) <= self.norm

    @property
    def is_left(self) -> bool:
        """Whether the parameter's present gradient still includes the watched one."""
        if self.handles or self.norm is None:
            return self.added and self.parameter.grad is self.gradient
        return self.is_there

    @property
    def _is_untouched(self) -> bool:
        """Whether a gradient is not zero and has not been written to since it was watched.

        Writing to the `data` of a gradient, which is how loops zeroed it once, is not counted.
        """
        gradient = self.parameter.grad
        same = (
            gradient is not None and gradient is self.gradient and version(gradient) == self.version
        )
        return same and bool(self.gradient.any())

    def follow(self) -> None:
        """Register hooks that tell whether the next backward adds to this gradient."""
        self.version = version(self.gradient)
        before, after = (
            self.parameter.register_hook,  # called before the gradient is added
            self.parameter.register_post_accumulate_grad_hook,
        )
        self.handles = [before(self._before), after(self._after)]  # type: ignore[no-untyped-call]

    def _before(self, _new: Tensor) -> None:
        self.added = not capturing() and self._is_untouched

    def _after(self, parameter: Tensor) -> None:
        if self.added and parameter.grad is not None:
            self.gradient = parameter.grad
            self.version = version(parameter.grad)

    def forget(self) -> None:
        """Remove the hooks from the parameter whose gradient is watched."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()


class FollowedGradients:
    """Watches gradients from one backward to the next, at most one of each parameter."""

    def __init__(self) -> None:
        self._followed: dict[int, FollowedGradient] = {}

    def begin(self, parameters: Iterable[Tensor], *, may_shrink: bool = False) -> None:
        """Watch the parameters' present gradients, and stop watching their earlier ones.

        Args:
            parameters: those that have none, or one without plain values, are left out.
            may_shrink: whether a gradient is the same after a clip, which makes it no larger.
        """
        for parameter in parameters:
            self.end([parameter])
            if not (parameter.requires_grad and parameter.is_leaf):
                continue  # torch warns of whoever asks another tensor for its gradient
            gradient = parameter.grad
            if gradient is not None and has_plain_values(gradient):
                norm = float(gradient.norm()) if may_shrink else None
                count = version(gradient)
                self._followed[id(parameter)] = FollowedGradient(parameter, gradient, norm, count)

    def backward(self) -> None:
        """Before a gradient's first backward, follow it if it is unchanged, else stop watching."""
        for key, followed in [*self._followed.items()]:
            if followed.handles:
                continue
            if followed.is_there:
                followed.follow()
            else:
                del self._followed[key]

    def left(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """Return the parameters whose present gradient still contains the watched one."""
        followed = (self._followed.get(id(parameter)) for parameter in parameters)
        return [
            gradient.parameter for gradient in followed if gradient is not None and gradient.is_left
        ]

    def untouched(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """Return parameters whose `grad` is as it was watched, see `FollowedGradient.is_there`."""
        followed = (self._followed.get(id(parameter)) for parameter in parameters)
        return [
            gradient.parameter
            for gradient in followed
            if gradient is not None and gradient.is_there
        ]

    def end(self, parameters: Iterable[Tensor]) -> None:
        """Stop watching the gradients of these parameters."""
        for parameter in parameters:
            followed = self._followed.pop(id(parameter), None)
            if followed is not None:
                followed.forget()

    def close(self) -> None:
        """Remove all hooks from parameters."""
        self.end([gradient.parameter for gradient in self._followed.values()])
