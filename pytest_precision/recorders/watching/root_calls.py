"""Tell of each call of a model that the loop itself makes, with its inputs and its output."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from pytest_precision.engine.capture import ModuleHook
from pytest_precision.recorders.scripts.wrappers import holds_anything
from pytest_precision.recorders.torch_hooks import LoopEvents


class RootCall(NamedTuple):
    """A call of a model with gradients, wrapped as the loop has it.

    Attributes:
        root: the module that the loop calls.
        args, kwargs: the inputs.
    """

    root: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class RootListener:
    """Base class of what is told of calls; each method does nothing here."""

    def begins(self, call: RootCall) -> None:
        """Do nothing here; called before a forward of a model."""

    def ended(self, call: RootCall, output: Any) -> None:
        """Do nothing here; called after it."""


class RootCalls(LoopEvents):
    """Finds the models that a loop calls, and tells of their calls with gradients.

    A model that was not named beforehand is found when it is first called, and what it is called
    with is seen from the second time on.

    Args:
        listeners: are told.
    """

    def __init__(self, listeners: Iterable[RootListener]) -> None:
        self._listeners = [*listeners]
        self._handles: list[RemovableHandle] = []
        self._parts: WeakSet[nn.Module] = WeakSet()
        self._running: list[tuple[nn.Module, RootCall | None]] = []

    def watch(self, root: nn.Module) -> None:
        """Tell of this model's calls from here on."""
        self._parts.update(root.modules())
        begin, end = ModuleHook(self._begin), ModuleHook(self._end)
        begins = root.register_forward_pre_hook(begin, with_kwargs=True)
        ends = root.register_forward_hook(end, with_kwargs=True, always_call=True)
        self._handles += [begins, ends]

    def forward(self, module: nn.Module) -> None:
        """Find a model that the loop calls, or what it has been wrapped in since."""
        if not self._running and module not in self._parts and holds_anything(module):
            self.watch(module)

    def close(self) -> None:
        """Leave the models as they were."""
        for handle in self._handles:
            handle.remove()

    def _begin(self, root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        outermost = not self._running and torch.is_grad_enabled()
        call = RootCall(root, args, kwargs) if outermost else None
        self._running.append((root, call))
        if call is not None:
            for listener in self._listeners:
                listener.begins(call)

    def _end(
        self, root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        if not self._running or self._running[-1][0] is not root:
            return  # it was found in this call, the beginning of which was not seen
        _, call = self._running.pop()
        if call is not None:
            for listener in self._listeners:
                listener.ended(call, output)
