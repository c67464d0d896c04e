"""Attribute each backward operation to the source line of its forward.

A node of autograd is numbered before the operator that it is of computes, so that the number of the
last node says which operator a backward belongs to.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from pytest_precision._torch.around import current_node, next_node
from pytest_precision.probes.lines.log.frames import Frames
from pytest_precision.probes.lines.operations import CodeLine


class Origin(NamedTuple):
    """Where an operation comes from: its source line, its module, and forward or backward.

    Attributes:
        line: of the user's code, if it has one.
        module: path of the module.
        backward: whether it is part of a backward.
    """

    line: CodeLine | None
    module: str
    backward: bool


class ForwardLines:
    """Finds the source line of the operation that is running; in a backward, its forward's line.

    Args:
        frames: finds lines in stacks.
    """

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._forwards: dict[int, Origin] = {}
        self._running: list[nn.Module] = []
        # Weak, or an earlier model of a script that builds another one would seem to be in use.
        self._paths: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Track in this context which module's forward is running."""
        with (
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ):
            yield

    def _enter(self, module: nn.Module, _inputs: Any) -> None:
        if torch.compiler.is_compiling():  # what is traced here calls no hook when it runs
            return
        if module not in self._paths:
            for path, part in module.named_modules():
                self._paths.setdefault(part, path)
        self._running.append(module)

    def _leave(self, module: nn.Module, _inputs: Any, _result: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if any(running is module for running in self._running):
            while self._running.pop() is not module:
                pass

    def origin(self, operator: Any = None) -> Origin:
        """Return the source line, module and direction of the operation that is being called.

        Args:
            operator: that is being called; None for what torch does not dispatch.
        """
        line, outside = self._frames.stack(operator)
        node = current_node()
        forwards = self._forwards
        if node is not None and (line is None or outside):
            return forwards.get(node, Origin(line, "", backward=True))._replace(backward=True)
        # Empty for the model, and outside of any.
        path = self._paths.get(self._running[-1], "") if self._running else ""
        origin = Origin(line, path, backward=False)
        forwards.setdefault(next_node() - 1, origin)
        if node is None:
            return origin
        # A backward in Python, or a forward that is computed again.
        module = forwards[node].module if node in forwards else ""
        return Origin(line, module, backward=True)
