"""Torch hooks: what torch calls while a loop runs, for as long as they are open and no longer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial, wraps
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, multiprocessing, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from pytest_precision._torch.around import around_calls, untraced
from pytest_precision._torch.training import function_that_clamps, function_that_scales
from pytest_precision.ranks.state.accelerator import capturing
from pytest_precision.recorders.scripts.steps import Steps


@contextmanager
def opened(steps: Steps) -> Iterator[None]:
    """Report a loop's events to `steps` inside the block; remove all hooks afterwards."""
    hooks = _Hooks(steps)
    with ExitStack() as stack:
        stack.enter_context(register_module_forward_pre_hook(hooks.forward))
        stack.enter_context(register_optimizer_step_pre_hook(untraced(hooks.before_step)))
        stack.enter_context(register_optimizer_step_post_hook(untraced(hooks.after_step)))
        for replacement in _wrapped(steps):
            stack.enter_context(replaced(*replacement))
        yield


class _Hooks(NamedTuple):
    """The functions that torch calls before each module and around each optimizer step."""

    steps: Steps

    def forward(self, module: nn.Module, _inputs: Any) -> None:
        if not torch.compiler.is_compiling():  # there it would be traced rather than called
            self.steps.forward(module)

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if capturing():
            return None
        closure = has_closure(args, kwargs)
        self.steps.update(optimizer, closure=closure)
        if not closure:
            return None
        told = partial(_telling, partial(self.steps.computed, optimizer))
        return tuple(map(told, args)), {name: told(value) for name, value in kwargs.items()}

    def after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not capturing():
            self.steps.updated(optimizer, closure=has_closure(args, kwargs))


def _telling(told: Callable[[], None], given: Any) -> Any:
    """Return an argument of a step; wrap a closure so that `told` runs when it returns."""
    if isinstance(given, Optimizer) or not callable(given):
        return given

    @wraps(given)
    def closure(*args: Any, **kwargs: Any) -> Any:
        result = given(*args, **kwargs)
        told()
        return result

    return closure


def has_closure(args: Any, kwargs: Any) -> bool:
    """Return whether an optimizer's step was called with a closure."""
    # The hooks of an optimizer are given what `step` was, with or without the optimizer itself.
    given = [value for value in args if not isinstance(value, Optimizer)]
    return callable(kwargs.get("closure")) or any(map(callable, given))


Told = Callable[..., object]


def _wrapped(steps: Steps) -> Iterator[tuple[Any, str, Told | None, Told | None]]:
    """Yield functions of torch to wrap: owner, name, and what to call before and after.

    What the former returns takes the place of the first argument, unless it is None.
    """
    yield Tensor, "backward", lambda loss, *_, **__: steps.backward(loss), None
    yield (
        *function_that_scales(),
        lambda parameters, max_norm, total_norm, foreach=None: steps.clip(total_norm),
        None,
    )
    yield *function_that_clamps(), lambda *_, **__: steps.clip(None), None
    yield nn.Module, "compile", None, lambda module, *_, **__: steps.compiled(module)
    # In torch.multiprocessing, the function `spawn` hides the module that it is in.
    for holder in (multiprocessing, import_module("torch.multiprocessing.spawn")):
        yield holder, "start_processes", lambda *_, **__: steps.spawned(), None
    yield (
        torch.amp.GradScaler,
        "step",
        lambda scaler, *_, **__: steps.scales(scaler),
        lambda _, optimizer, *__, **___: steps.scaled(optimizer),
    )


def replaced(
    holder: Any, name: str, before: Told | None, after: Told | None
) -> AbstractContextManager[None]:
    """Wrap functions of torch inside the block; see `_wrapped`."""
    running: list[Any] = []
    # Not `wrapped`: what is compiled of the function itself is to stay compiled.
    before, after = before and untraced(before), after and untraced(after)

    def wrapped(original: Told, *args: Any, **kwargs: Any) -> Any:
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

    return around_calls(holder, name, wrapped)
