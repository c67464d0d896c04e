"""Compiled: run functions before a module's compiled call, for which torch calls no hook.

`module.compile()` puts what it has compiled in the place of the call of the module. So what a hook
would do there is done before that call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pytest_precision._torch.training import compiled_call, set_compiled_call


class ToldCall:
    """Wraps the compiled call of a module, and runs functions before it.

    Args:
        call: what torch has compiled.

    Attributes:
        call: as given.
        told: functions to call first, in their order; inside of another compilation, none is.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call
        self.told: list[Callable[[], None]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the registered functions, then the compiled call, and return its result."""
        if not torch.compiler.is_compiling():
            for told in [*self.told]:  # one of them may add another
                told()
        return self.call(*args, **kwargs)


def is_compiled(module: nn.Module) -> bool:
    """Return whether a call of a module runs compiled code, by `compile()` or by a wrapper."""
    return compiled_call(module) is not None or "_orig_mod" in dict(module.named_children())


def before_compiled_call(module: nn.Module, told: Callable[[], None]) -> Callable[[], None]:
    """Run a function before each compiled call of a module; return one that undoes this."""
    found = compiled_call(module)
    call = found if isinstance(found, ToldCall) else ToldCall(found)
    call.told.append(told)
    set_compiled_call(module, call)

    def take_back() -> None:
        call.told.remove(told)
        if not call.told and compiled_call(module) is call:
            set_compiled_call(module, call.call)

    return take_back
