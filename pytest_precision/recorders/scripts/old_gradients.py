"""Old gradients: those of the step before that a loop adds its new ones to.

A gradient is old when its optimizer has read it, until anybody changes it or takes it away. If the
backward of a later step adds to an old one, and the optimizer reads the sum, nobody has zeroed it.
What a loop does on purpose changes the gradient in between: it scales it, zeroes it in place, or
gives the parameter another tensor. So only those are followed that are untouched when a backward
begins, and a right loop with one optimizer has none.
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
    """Return whether a tensor's values can be looked at without more ado.

    Those of a shard may need a collective; others, such as sparse ones, lack operations.
    """
    if type(tensor) not in (Tensor, nn.Parameter):
        return False
    assert tensor is not None
    return tensor.layout == torch.strided and not tensor.is_nested and not tensor.is_meta


@dataclass
class OldGradient:
    """A gradient that an optimizer has read.

    Attributes:
        parameter: whose gradient it is.
        gradient: the tensor itself, which new gradients are added to in place.
        version: counts what has changed it.
        added: whether a backward has added to it as it was.
        handles: of the hooks that see this.
    """

    parameter: Tensor
    gradient: Tensor
    version: int
    added: bool = False
    handles: list[RemovableHandle] = field(default_factory=list)

    @property
    def is_untouched(self) -> bool:
        """Whether nobody has changed it since the optimizer, or the last backward.

        Writing to the `data` of a gradient, which is how loops zeroed it once, is not counted.
        """
        now = self.parameter.grad
        same = now is not None and now is self.gradient and version(now) == self.version
        return same and bool(self.gradient.any())

    def follow(self) -> None:
        """See whether the backward that begins adds to it."""
        before, after = (
            self.parameter.register_hook,  # called before the gradient is added
            self.parameter.register_post_accumulate_grad_hook,
        )
        self.handles = [before(self._before), after(self._after)]  # type: ignore[no-untyped-call]

    def _before(self, _new: Tensor) -> None:
        self.added = not capturing() and self.is_untouched

    def _after(self, parameter: Tensor) -> None:
        if self.added and parameter.grad is not None:
            self.gradient = parameter.grad
            self.version = version(parameter.grad)

    def forget(self) -> None:
        """Take back the hooks."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()


class OldGradients:
    """Follows the gradients that optimizers have read."""

    def __init__(self) -> None:
        self._old: dict[int, OldGradient] = {}

    def backward(self) -> None:
        """Keep following gradients that are untouched when a backward begins; forget others."""
        for key, old in [*self._old.items()]:
            if old.handles:
                continue
            if old.is_untouched:
                old.follow()
            else:
                del self._old[key]

    def read(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """Return the parameters whose old gradient is in the one that an optimizer reads."""
        found = (self._old.get(id(own)) for own in parameters)
        return [
            old.parameter
            for old in found
            if old is not None and old.added and old.parameter.grad is old.gradient
        ]

    def updated(self, parameters: Iterable[Tensor]) -> None:
        """Take the gradients that an optimizer has just read for old ones."""
        for parameter in parameters:
            before = self._old.pop(id(parameter), None)
            if before is not None:
                before.forget()
            if parameter.requires_grad and parameter.is_leaf and has_plain_values(parameter.grad):
                gradient = parameter.grad
                assert gradient is not None
                self._old[id(parameter)] = OldGradient(parameter, gradient, version(gradient))

    def close(self) -> None:
        """Take back all hooks."""
        for old in self._old.values():
            old.forget()
        self._old.clear()
