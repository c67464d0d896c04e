"""Settings: log assignments to options and attributes, and restores of state, with their lines."""

from __future__ import annotations

import sys
import weakref
from collections import UserDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pytest_precision._torch.around import around_calls
from pytest_precision._torch.regions import in_compiled_call
from pytest_precision._torch.training import makes_state
from pytest_precision.probes.lines.log.frames import Frames
from pytest_precision.probes.lines.operations import (
    CALLED,
    DROPPED,
    UPDATES,
    ZEROES,
    CodeLine,
    OperationLog,
    Setting,
)

PLAIN_TYPES = (bool, int, float, str, tuple, type(None))


class SettingsWatch:
    """Logs each assignment to an option of a parameter group or to a module's plain attribute.

    Those of a traced graph are text that a compiler writes, and what it computes is logged.

    Among them it logs the calls that update weights or zero gradients, and lines that drop one.

    Args:
        frames: finds lines in stacks.
        log: takes what is set.

    Attributes:
        restores: whether calls that restore state are logged, too: in a script that begins with a
            load.
    """

    def __init__(self, frames: Frames, log: OperationLog) -> None:
        self._frames = frames
        self._log = log
        self.restores = False
        self._computed: CodeLine | None = None
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._modules: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Log option assignments, module attribute changes and state loads inside the context."""
        restored = partial(self._restored, "load_state_dict")
        with (
            # Functions of torch with which state is brought back, also below those of a framework.
            around_calls(torch, "load", partial(self._restored, "load")),
            around_calls(nn.Module, "load_state_dict", restored),
            around_calls(Optimizer, "load_state_dict", restored),
            around_calls(Optimizer, "add_param_group", self._added),
            around_calls(nn.Module, "__setattr__", self._attribute),
            around_calls(LRScheduler, "step", self._scheduled),
            around_calls(Optimizer, "zero_grad", self._zeroed),
            around_calls(nn.Module, "zero_grad", self._zeroed),
            self._gradients_followed(),
        ):
            hook = register_optimizer_step_pre_hook(self._stepped)
            try:
                yield
            finally:
                hook.remove()

    def watch(self, optimizer: Optimizer) -> None:
        """Log later assignments to the parameter groups of an optimizer."""
        number = self._optimizers.setdefault(optimizer, len(self._optimizers))
        for place, group in enumerate(optimizer.param_groups):
            if not isinstance(group, _Watched):
                watched = _Watched(group)
                watched.notify = lambda key, value, place=place: self._group(
                    number, place, key, value
                )
                optimizer.param_groups[place] = watched

    def unwatch(self, optimizer: Optimizer) -> None:
        """Make an optimizer's parameter groups plain dicts again, as torch.compile wants them."""
        for place, group in enumerate(optimizer.param_groups):
            if isinstance(group, _Watched):
                optimizer.param_groups[place] = group.data

    def name(self, model: nn.Module) -> None:
        """Register a model's modules by path, so that the log can name them."""
        if model in self._modules:
            return
        for path, module in model.named_modules():
            self._modules[module] = path

    def _added(self, original: Any, optimizer: Optimizer, group: dict[str, Any]) -> None:
        original(optimizer, group)
        number = self._optimizers.setdefault(optimizer, len(self._optimizers))
        place = len(optimizer.param_groups) - 1
        for key, value in optimizer.param_groups[-1].items():
            self._group(number, place, key, value)
        self.watch(optimizer)

    def _group(self, number: int, place: int, key: str, value: Any) -> None:
        if key != "params":
            which = f"group {place}" + (f" of optimizer {number}" if number else "")
            self._note(key, which, value)

    def _attribute(self, original: Any, module: nn.Module, name: str, value: Any) -> None:
        is_plain = isinstance(value, PLAIN_TYPES) and not isinstance(module, torch.fx.GraphModule)
        changed = is_plain and vars(module).get(name, value) != value
        original(module, name, value)
        if changed:
            path = self._modules.get(module, type(module).__name__)
            self._note(name, path or "the model", value)

    def _scheduled(self, original: Any, scheduler: LRScheduler, *args: Any, **kwargs: Any) -> None:
        """Run a scheduler's step; log rates by the user's line that calls it, or computes them."""
        before = sys.getprofile()
        sys.setprofile(self._returned)
        try:
            original(scheduler, *args, **kwargs)
        finally:
            sys.setprofile(before)
            self._computed = None

    def _zeroed(self, original: Any, *args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        self._note(ZEROES, "the gradients", CALLED)

    @contextmanager
    def _gradients_followed(self) -> Iterator[None]:
        """Log lines of the user's that set a parameter's gradient to None, in this context.

        The class has no method of its own for it, and after the context it has none again.
        """
        original = Tensor.__setattr__

        def assign(tensor: Tensor, name: str, value: Any) -> None:
            dropped = name == DROPPED and value is None and tensor.grad is not None
            original(tensor, name, value)
            if dropped:
                self._dropped(tensor)

        setattr(Tensor, "__setattr__", assign)  # noqa: B010 (mypy takes no assignment to a method)
        try:
            yield
        finally:
            delattr(Tensor, "__setattr__")

    def _dropped(self, parameter: Tensor) -> None:
        line = self._frames.stack().line
        if line is None or not line.is_users or line.called:
            return
        for module, path in self._modules.items():
            for name, other in module.named_parameters(recurse=False):
                if other is parameter:
                    self._note(DROPPED, f"{path}.{name}".removeprefix("."), None)

    def _stepped(self, optimizer: Optimizer, *_: Any) -> None:
        if not in_compiled_call():
            number = self._optimizers.get(optimizer, 0)
            self._note(UPDATES, f"optimizer {number}", CALLED)

    def _restored(self, name: str, original: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if args and isinstance(args[0], Optimizer):
            self.watch(args[0])  # it has new groups
        line = self._frames.stack().line if self.restores else None
        if line is not None and line.is_users:
            self._log.restores.append(Setting(len(self._log.operations), name, "", "", line))
        return result

    def _returned(self, frame: FrameType, event: str, _value: Any) -> None:
        if event == "return":
            self._computed = self._frames.of_user(frame) or self._computed

    def _note(self, name: str, owner: str, value: Any) -> None:
        if makes_state():
            return
        shown = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
        if isinstance(shown, PLAIN_TYPES):
            line = self._frames.stack().line
            if line is None or not line.is_users:
                line = self._computed or line
            self._log.settings.append(
                Setting(
                    *(len(self._log.operations), name, owner, repr(shown), line),
                    self._frames.sites(),
                )
            )


class _Watched(UserDict[str, Any], dict[str, Any]):  # type: ignore[misc]
    """A view of a parameter group (a dict) that calls a function when one of its options is set.

    What is set in the view and what is set in the group are one: a loop may hold either of them.
    """

    notify: Any = None

    def __init__(self, group: dict[str, Any]) -> None:
        # UserDict.__init__ would copy the group.
        self.data = group

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        if self.notify is not None:
            self.notify(key, value)

    def __copy__(self) -> dict[str, Any]:  # type: ignore[override]
        return dict(self.data)

    def __reduce__(self) -> Any:
        return dict, (dict(self.data),)
