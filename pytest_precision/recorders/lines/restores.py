"""Restores: which lines of a script bring state back from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from pytest_precision.recorders.lines.frames import Frames
from pytest_precision.recorders.lines.settings import called_through
from pytest_precision.trace.code_lines import Setting
from pytest_precision.trace.operations import OperationLog

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
        self._frames = frames
        self._log = log
        self.active = False

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Note what is called inside."""
        with ExitStack() as stack:
            for holder, name in RESTORING:
                stack.enter_context(called_through(holder, name, partial(self._restored, name)))
            yield

    def _restored(self, name: str, original: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if self.active:
            self._note(name)
        return result

    def _note(self, name: str) -> None:
        line = self._frames.stack().line
        if line is not None and line.own:
            self._log.restores.append(Setting(len(self._log.operations), name, "", "", line))
