"""Torch hooks: what torch calls while a loop runs, for as long as they are open and no longer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor, multiprocessing, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from pytest_precision._torch.dispatch import in_transform
from pytest_precision._torch.training import function_that_clamps, function_that_scales
from pytest_precision.ranks.state.accelerator import capturing
from pytest_precision.recorders.scripts.compiled import before_compiled_call


class Events(Protocol):
    """What is told of a loop, before it happens unless it says otherwise."""

    def forward(self, module: nn.Module) -> None:
        """Handle the call of a module, in training or evaluation mode."""

    def hidden(self, module: nn.Module, why: str) -> None:
        """Handle the call of a module where no value can be read, as in a CUDA graph."""

    def backward(self, loss: Tensor) -> Tensor:
        """Handle the start of a loss's backward; return the tensor that it shall start from."""

    def clip(self, norm: Tensor | None) -> None:
        """Handle the clipping of gradients that have this norm; None for clipping by value."""

    def update(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Handle the start of an optimizer's step, with or without a closure."""

    def computed(self, optimizer: Optimizer) -> None:
        """Handle the return of the step's closure, which the optimizer may call again."""

    def updated(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Handle the end of an optimizer's step."""

    def spawned(self) -> None:
        """Handle the start of processes by `torch.multiprocessing`."""

    def scales(self, scaler: torch.amp.GradScaler) -> None:
        """Handle the call of `GradScaler.step`, before it steps or skips."""

    def scaled(self, optimizer: Optimizer) -> None:
        """Handle the end of `GradScaler.step`, which has stepped or skipped."""


@contextmanager
def opened(events: Events) -> Iterator[None]:
    """Tell `events` what a loop does while this is open; take everything back after it."""
    hear = _forward_hook(events)
    with ExitStack() as stack:

        def compiled(module: nn.Module, *_: Any, **__: Any) -> None:
            stack.callback(before_compiled_call(module, partial(hear, module, ())))

        for handle in (
            register_module_forward_pre_hook(hear),
            register_optimizer_step_pre_hook(_before_step(events)),
            register_optimizer_step_post_hook(_after_step(events)),
        ):
            stack.callback(handle.remove)
        wrapped = (*_wrapped(events), (nn.Module, "compile", None, compiled))
        for holder, name, before, after in wrapped:
            stack.enter_context(replaced(holder, name, before, after))
        yield


def _forward_hook(events: Events) -> Callable[[nn.Module, Any], None]:
    def hook(module: nn.Module, _inputs: Any) -> None:
        if torch.compiler.is_compiling():  # there it would be traced rather than called
            return
        if in_transform():
            events.hidden(module, "called inside a transform of torch.func")
        elif capturing():
            events.hidden(module, "captured in a CUDA graph, whose replays call no hook")
        else:
            events.forward(module)

    return hook


def _before_step(events: Events) -> Callable[[Optimizer, Any, Any], Any]:
    def hook(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if capturing():
            return None
        closure = has_closure(args, kwargs)
        events.update(optimizer, closure=closure)
        if not closure:
            return None
        told = partial(_telling, partial(events.computed, optimizer))
        return tuple(map(told, args)), {name: told(value) for name, value in kwargs.items()}

    return hook


def _telling(told: Callable[[], None], given: Any) -> Any:
    """Return an argument of a step; of a closure, one that says when it has returned."""
    if isinstance(given, Optimizer) or not callable(given):
        return given

    @wraps(given)
    def closure(*args: Any, **kwargs: Any) -> Any:
        result = given(*args, **kwargs)
        told()
        return result

    return closure


def _after_step(events: Events) -> Callable[[Optimizer, Any, Any], None]:
    def hook(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if capturing():
            return
        events.updated(optimizer, closure=has_closure(args, kwargs))

    return hook


def has_closure(args: Any, kwargs: Any) -> bool:
    """Return whether the arguments of a step, as its hooks get them, have a closure."""
    # The hooks of an optimizer are given what `step` was, with or without the optimizer itself.
    given = [value for value in args if not isinstance(value, Optimizer)]
    return callable(kwargs.get("closure")) or any(map(callable, given))


Told = Callable[..., object]


def _wrapped(events: Events) -> Iterator[tuple[Any, str, Told | None, Told | None]]:
    """Yield what has no hook: its holder, its name, and what to call before it and after it.

    What the former returns takes the place of the first argument, unless it is None.
    """
    yield Tensor, "backward", lambda loss, *_, **__: events.backward(loss), None
    yield *function_that_scales(), _before_clip(events), None
    yield *function_that_clamps(), lambda *_, **__: events.clip(None), None
    # In torch.multiprocessing, the function `spawn` hides the module that it is in.
    for holder in (multiprocessing, import_module("torch.multiprocessing.spawn")):
        yield holder, "start_processes", lambda *_, **__: events.spawned(), None
    yield (
        torch.amp.GradScaler,
        "step",
        lambda scaler, *_, **__: events.scales(scaler),
        lambda _, optimizer, *__, **___: events.scaled(optimizer),
    )


def _before_clip(events: Events) -> Told:
    def told(parameters: Any, max_norm: float, total_norm: Tensor, foreach: Any = None) -> None:
        events.clip(total_norm)

    return told


@contextmanager
def replaced(holder: Any, name: str, before: Told | None, after: Told | None) -> Iterator[None]:
    """Call `before` and `after` around a function, by its arguments; see `_wrapped`."""
    original = getattr(holder, name)
    running: list[Any] = []

    @wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        # Under a function mode, such as `with torch.device(...)`, torch calls it once more.
        # Nothing can be read while a CUDA graph is captured.
        if capturing() or (running and args and args[0] is running[-1]):
            return original(*args, **kwargs)
        if before is not None:
            first = before(*args, **kwargs)
            args = args if first is None else (first, *args[1:])
        running.append(args[0] if args else None)
        try:
            result = original(*args, **kwargs)
        finally:
            running.pop()
        if after is not None:
            after(*args, **kwargs)
        return result

    setattr(holder, name, wrapper)
    try:
        yield
    finally:
        setattr(holder, name, original)
