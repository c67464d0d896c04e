"""Modules: which module's forward runs, by its path in the model that the loop has called."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)


class Modules:
    """Follows the calls of modules."""

    def __init__(self) -> None:
        self._running: list[nn.Module] = []
        self._paths: dict[int, str] = {}
        self._kept: list[nn.Module] = []

    @property
    def path(self) -> str:
        """Return the path of the module whose forward runs; empty outside of all, and for a model.

        A module that the model does not hold has the name of its class.
        """
        return self._paths.get(id(self._running[-1]), "") if self._running else ""

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow the calls inside."""
        with ExitStack() as stack:
            stack.callback(register_module_forward_pre_hook(self._enter).remove)
            stack.callback(register_module_forward_hook(self._leave, always_call=True).remove)
            yield

    def _enter(self, module: nn.Module, _inputs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if id(module) not in self._paths:
            self._kept.append(module)  # so that no other one gets its id
            for path, part in module.named_modules():
                self._paths.setdefault(id(part), path)
        self._running.append(module)

    def _leave(self, module: nn.Module, _inputs: Any, _result: Any) -> None:
        if self._running and any(one is module for one in self._running):
            while self._running.pop() is not module:
                pass
