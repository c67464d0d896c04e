"""Detect mistakes that no training loop may make, such as gradients that are never zeroed.

They need neither a workload nor another side, so that a mistake of both sides is found. Each is
silent wherever a right loop may do so, as `tests/recorders/scripts/test_loop_rules.py` shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from pytest_precision._torch.dispatch import version
from pytest_precision.engine.groups import updated_tensors
from pytest_precision.recorders.scripts.followed_gradients import (
    FollowedGradients,
    has_plain_values,
)
from pytest_precision.recorders.scripts.loop_reader import LoopReader
from pytest_precision.recorders.torch_hooks import LoopEvents


class Still(NamedTuple):
    """A weight without a gradient, with a copy to check that an optimizer step leaves it unchanged.

    Attributes:
        weight: which has no gradient.
        version: counts what has changed it.
        copy: its values, if any was written to before.
    """

    weight: Tensor
    version: int
    copy: Tensor | None


class LoopRules(LoopEvents):
    """Detects mistakes that no training loop may make, and describes each in words.

    Args:
        reader: says which step runs, and the names of parameters.

    Attributes:
        broken: kind of what is wrong, which a test may leave unchecked, and words.
    """

    def __init__(self, reader: LoopReader) -> None:
        self.broken: list[tuple[str, str]] = []
        self._reader = reader
        self._told: set[str] = set()
        self._old = FollowedGradients()
        self._divided = FollowedGradients()
        self._twice = list[Tensor]()
        self._unscaled: list[Optimizer] = []
        self._just_stepped: list[Optimizer] = []
        self._still: dict[int, list[Still]] = {}
        self._copies = False
        self._read: dict[int, Tensor] = {}
        self._copies_gradients = False

    def update(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Report gradients, left from the last step or non-finite, that a step is about to read."""
        if closure:
            return
        members = updated_tensors(optimizer)
        self._tell(
            "grad",
            self._old.left(members),
            "was updated at step {} by a gradient that was added to that of the step before, which "
            "nobody had zeroed",
        )
        self._tell(
            "grad",
            self._same_as_read(optimizer, members),
            "was updated at step {} by the gradient of the step before: "
            f"{type(optimizer).__name__} stepped twice with no forward or backward in between",
        )
        if optimizer in self._unscaled and not skips_by_itself(optimizer):
            self._tell(
                "grad",
                [tensor for tensor in members if overflowed(tensor)],
                "was updated at step {} by a gradient that is not finite, of which a loss scaler "
                "leaves the step out",
            )
        # Torch's own leave a weight alone that has no gradient; others have rules of their own.
        if getattr(torch.optim, type(optimizer).__name__, None) is type(optimizer):
            self._still[id(optimizer)] = [
                Still(tensor, version(tensor), tensor.detach().clone() if self._copies else None)
                for tensor in members
                if tensor.grad is None and has_plain_values(tensor)
            ]

    def updated(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Report weights that a step moved without a gradient; watch the gradients it leaves."""
        written = [
            still
            for still in self._still.pop(id(optimizer), ())
            if version(still.weight) != still.version
        ]
        # A write may change nothing, so the values are looked at from the next step on.
        self._copies |= bool(written)
        self._tell(
            "master",
            [
                still.weight
                for still in written
                if still.copy is not None and not torch.equal(still.weight, still.copy)
            ],
            f"was moved at step {{}} by {type(optimizer).__name__}, though it had no gradient",
        )
        self._old.begin(updated_tensors(optimizer))
        self._divided.end(updated_tensors(optimizer))
        self._unscaled = [
            other_optimizer
            for other_optimizer in self._unscaled
            if other_optimizer is not optimizer
        ]
        self._just_stepped.append(optimizer)
        self._read = {}
        if self._copies_gradients:
            with_values = (
                tensor for tensor in updated_tensors(optimizer) if has_plain_values(tensor.grad)
            )
            self._read = {
                id(tensor): tensor.grad.clone() for tensor in with_values if tensor.grad is not None
            }

    def _same_as_read(self, optimizer: Optimizer, members: Sequence[Tensor]) -> list[Tensor]:
        """Return the weights whose gradient an optimizer is about to read a second time.

        Writing to the `data` of a gradient, or by a collective, counts as no write, so that values
        are compared. They are copied from the first time on that no write was counted.
        """
        if optimizer not in self._just_stepped:
            return []
        untouched = self._old.untouched(members)
        self._copies_gradients |= bool(untouched)
        return [
            tensor
            for tensor in untouched
            if tensor.grad is not None
            and (before := self._read.get(id(tensor))) is not None
            and torch.equal(before, tensor.grad)
        ]

    def forward(self, module: nn.Module) -> None:
        """Record that a forward ran, so that the next step is not reported as a repeated one."""
        self._just_stepped.clear()

    def backward(self, loss: Tensor) -> Tensor:
        """Watch whether a backward adds to gradients that a step has read or a scaler unscaled."""
        self._just_stepped.clear()
        self._old.backward()
        self._divided.backward()
        return loss

    def unscales(self, scaler: torch.amp.GradScaler, optimizer: Optimizer) -> None:
        """Find gradients that a `GradScaler` is about to divide by its scale a second time."""
        members = updated_tensors(optimizer)
        self._twice = self._divided.left(members)
        self._divided.end(members)

    def unscaled(self, scaler: torch.amp.GradScaler, optimizer: Optimizer) -> None:
        """Report gradients that a `GradScaler` has divided twice, and watch all divided ones."""
        self._unscaled.append(optimizer)
        if scaler.is_enabled():
            self._tell(
                "grad",
                self._twice,
                "was divided by the loss scale twice: GradScaler.unscale_ ran at step {} on a "
                "gradient of which a part was unscaled already",
            )
            self._divided.begin(updated_tensors(optimizer), may_shrink=True)

    def scaled(
        self, scaler: torch.amp.GradScaler, optimizer: Optimizer, *_: Any, **__: Any
    ) -> None:
        """Stop watching the unscaled gradients of an optimizer after its `GradScaler.step`."""
        self._divided.end(updated_tensors(optimizer))

    def close(self) -> None:
        """Remove all hooks on parameters."""
        self._old.close()
        self._divided.close()

    def _tell(self, kind: str, tensors: Sequence[Tensor], words: str) -> None:
        if not tensors or words in self._told:
            return
        self._told.add(words)
        first = self._reader.names.of(tensors[0]) or "a tensor that no module holds"
        more = f" (and {len(tensors) - 1} more)" if len(tensors) > 1 else ""
        self.broken.append((kind, f"{first}{more} {words.format(self._reader.step)}"))


def skips_by_itself(optimizer: Optimizer) -> bool:
    """Return whether the optimizer itself skips a step on overflow, as fused ones do."""
    return getattr(optimizer, "found_inf", None) is not None


def overflowed(parameter: Tensor) -> bool:
    """Return whether this rank's part of a gradient has NaN or infinite elements."""
    gradient = parameter.grad
    if isinstance(gradient, DTensor):
        gradient = gradient.to_local()
    return has_plain_values(gradient) and not bool(gradient.isfinite().all())  # type: ignore[union-attr]
