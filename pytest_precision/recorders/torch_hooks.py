"""Report a loop's events (forward, backward, clip, step) by hooks on torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial, wraps
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, multiprocessing, nn
from torch.amp import GradScaler
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DistributedSampler

from pytest_precision._torch.around import (
    after_applies,
    after_permutations,
    around_calls,
    untraced,
)
from pytest_precision._torch.training import function_that_scales, makes_state, place_of
from pytest_precision.ranks.state.accelerator import capturing

Told = Callable[..., object]


class LoopEvents:
    """Base class of listeners to a training loop: one method per event, which does nothing here.

    A call of a function of torch's is told with the arguments that the loop has given it.
    """

    def forward(self, module: nn.Module) -> None:
        """Do nothing here; called before a forward of any module."""

    def backward(self, loss: Tensor) -> Tensor:
        """Return the loss to backpropagate, here the same; called before a backward."""
        return loss

    def ran_backward(self, loss: Tensor, *_: Any, **__: Any) -> None:
        """Do nothing here; called after a backward."""

    def clip(self, norm: Tensor | None, limit: object = None) -> None:
        """Do nothing here; called before gradients are clipped, with their norm if it is known.

        Args:
            norm: of all gradients; None where each is clipped by itself.
            limit: of the norm, which is infinite where a loop only looks at the norm.
        """

    def update(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Do nothing here; called before an optimizer's step updates weights."""

    def computed(self, optimizer: Optimizer) -> None:
        """Do nothing here; called after an optimizer's closure has computed gradients."""

    def updated(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Do nothing here; called after an optimizer's step."""

    def permutes(self, sampler: DistributedSampler[Any], *_: Any) -> None:
        """Do nothing here; called before a sampler permutes the rows that ranks share."""

    def permuted(self, order: Tensor, owner: Any) -> None:
        """Do nothing here; called after `torch.randperm`, with the object whose method calls it."""

    def applied(self, function: type, results: Any, file: str, line: int) -> None:
        """Do nothing here; called after an autograd function, with the line that called it."""

    def compiled(self, module: nn.Module, *_: Any, **__: Any) -> None:
        """Do nothing here; called after a module was compiled."""

    def spawned(self, *_: Any, **__: Any) -> None:
        """Do nothing here; called before `torch.multiprocessing` starts processes."""

    def unscales(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        """Do nothing here; called before a `GradScaler` unscales an optimizer's gradients."""

    def unscaled(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        """Do nothing here; called after a `GradScaler` has unscaled an optimizer's gradients."""

    def scales(self, scaler: GradScaler, *_: Any, **__: Any) -> None:
        """Do nothing here; called before `GradScaler.step`, which runs or skips a step."""

    def scaled(self, scaler: GradScaler, optimizer: Optimizer, *_: Any, **__: Any) -> None:
        """Do nothing here; called after `GradScaler.step` has run or skipped a step."""


@contextmanager
def opened(*listeners: LoopEvents) -> Iterator[None]:
    """Report a training loop's events to listeners while the context is open.

    Each event is reported to them in the order in which they are given.
    """
    hooks = _Hooks(listeners)
    with ExitStack() as stack:
        stack.enter_context(register_module_forward_pre_hook(hooks.forward))
        stack.enter_context(register_optimizer_step_pre_hook(untraced(hooks.before_step)))
        stack.enter_context(register_optimizer_step_post_hook(untraced(hooks.after_step)))
        stack.enter_context(after_permutations(partial(hooks.tell, "permuted")))
        stack.enter_context(after_applies(untraced(partial(hooks.tell, "applied"))))
        for replacement in _wrapped(hooks):
            stack.enter_context(_replaced(*replacement))
        yield


class _Hooks(NamedTuple):
    """The functions that torch's hooks call; each passes an event on to all listeners."""

    listeners: tuple[LoopEvents, ...]

    def forward(self, module: nn.Module, _inputs: Any) -> None:
        if not torch.compiler.is_compiling():  # there it would be traced rather than called
            for listener in self.listeners:
                listener.forward(module)

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if capturing() or makes_state():
            return None
        closure = has_closure(args, kwargs)
        self.tell("update", optimizer, closure=closure)
        if not closure:
            return None
        wrapped = partial(_telling, partial(self.tell, "computed", optimizer))
        return tuple(map(wrapped, args)), {name: wrapped(value) for name, value in kwargs.items()}

    def after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not capturing() and not makes_state():
            self.tell("updated", optimizer, closure=has_closure(args, kwargs))

    def backward(self, loss: Tensor, *_: Any, **__: Any) -> Tensor:
        for listener in self.listeners:
            loss = listener.backward(loss)
        return loss

    def scales_gradients(
        self, parameters: Any, max_norm: Any, total_norm: Tensor, foreach: Any = None
    ) -> None:
        self.tell("clip", total_norm, max_norm)

    def clamps_gradients(self, *_: Any, **__: Any) -> None:
        self.tell("clip", None)

    def tell(self, event: str, /, *args: Any, **kwargs: Any) -> None:
        """Call the method named `event` on all listeners, with the event's arguments."""
        for listener in self.listeners:
            getattr(listener, event)(*args, **kwargs)


def _wrapped(hooks: _Hooks) -> Iterator[tuple[Any, str, Told | None, Told | None]]:
    """Yield each torch function to be wrapped to see its calls: its owner, name and callbacks."""
    tell = hooks.tell
    yield Tensor, "backward", hooks.backward, partial(tell, "ran_backward")
    yield *function_that_scales(), hooks.scales_gradients, None
    yield *place_of(clip_grad, "clip_grad_value_"), hooks.clamps_gradients, None
    yield DistributedSampler, "__iter__", partial(tell, "permutes"), None
    yield nn.Module, "compile", None, partial(tell, "compiled")
    # In torch.multiprocessing, the function `spawn` hides the module that it is in.
    for holder in (multiprocessing, import_module("torch.multiprocessing.spawn")):
        yield holder, "start_processes", partial(tell, "spawned"), None
    yield GradScaler, "unscale_", partial(tell, "unscales"), partial(tell, "unscaled")
    yield GradScaler, "step", partial(tell, "scales"), partial(tell, "scaled")


def _telling(tell: Callable[[], None], argument: Any) -> Any:
    """Return `argument`; a closure of `optimizer.step` is wrapped to call `tell` after it."""
    if isinstance(argument, Optimizer) or not callable(argument):
        return argument

    @wraps(argument)
    def closure(*args: Any, **kwargs: Any) -> Any:
        result = argument(*args, **kwargs)
        tell()
        return result

    return closure


def has_closure(args: Any, kwargs: Any) -> bool:
    """Return whether an optimizer's step was called with a closure."""
    # The hooks of an optimizer are given what `step` was, with or without the optimizer itself.
    values = [value for value in args if not isinstance(value, Optimizer)]
    return callable(kwargs.get("closure")) or any(map(callable, values))


def _replaced(
    holder: Any, name: str, call_before: Told | None, call_after: Told | None
) -> AbstractContextManager[None]:
    """Wrap a function of torch inside the context, to call functions before and after it.

    Args:
        holder: owns it.
        name: of the function.
        call_before: called before it with its arguments; what it returns takes the place of the
            first argument, unless it is None.
        call_after: called after it with its arguments.
    """
    running: list[Any] = []
    # Not `wrapped`: what is compiled of the function itself is to stay compiled.
    call_before, call_after = (
        call_before and untraced(call_before),
        call_after and untraced(call_after),
    )

    def wrapped(original: Told, *args: Any, **kwargs: Any) -> Any:
        # Under a function mode, such as `with torch.device(...)`, torch calls it once more.
        # Nothing can be read while a CUDA graph is captured.
        if capturing() or (running and args and args[0] is running[-1]):
            return original(*args, **kwargs)
        if call_before is not None:
            first = call_before(*args, **kwargs)
            args = args if first is None else (first, *args[1:])
        running.append(args[0] if args else None)
        try:
            result = original(*args, **kwargs)
        finally:
            running.pop()
        if call_after is not None:
            call_after(*args, **kwargs)
        return result

    return around_calls(holder, name, wrapped)
