"""Restores: which lines of a script bring state back from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from pytest_precision.recorders.lines.frames import Frames
from pytest_precision.trace.operations import OperationLog, Setting

RESTORING = ((torch, "load"), (nn.Module, "load_state_dict"), (Optimizer, "load_state_dict"))
"""Functions of torch with which state is brought back, also below those of a framework."""


class RestoreWatch:
    """Notes each call of a function that brings state back.

    Args:
        frames: finds lines in stacks.
        log: takes what is called.

    Attributes:
        active: whether calls are noted: in a script that begins with a load.
    """

    def __init__(self, frames: Frames, log: OperationLog) -> None:
        self._frames, self._log = frames, log
        self.active = False

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Note what is called inside."""
        with ExitStack() as stack:
            for holder, name in RESTORING:
                stack.enter_context(self._around(holder, name))
            yield

    @contextmanager
    def _around(self, holder: Any, name: str) -> Iterator[None]:
        original = getattr(holder, name)

        @wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self.active:
                self._note(name)
            return result

        setattr(holder, name, wrapper)
        try:
            yield
        finally:
            setattr(holder, name, original)

    def _note(self, name: str) -> None:
        line = self._frames.stack().line
        if line is not None and line.own:
            self._log.restores.append(Setting(len(self._log.operations), name, "", "", line))
