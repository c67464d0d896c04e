"""Resets of Transformer Engine's global fp8 state, for a process that runs many jobs in turn."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_INSIDE = ContextVar("called by a function that uses Transformer Engine", default=False)


@contextmanager
def without_earlier_layers() -> Iterator[None]:
    """Drop Transformer Engine's global fp8 state of earlier layers, before the outermost block.

    In delayed scaling, the histories of all layers that were ever called are updated together, and
    what is recomputed is numbered over all of them: each job would take longer than the one before,
    and differ from its repetition. A layer that was called before is never updated again, so that
    nothing is taken back between a layer's first call and the end of the function that makes it.
    """
    module = sys.modules.get("transformer_engine.pytorch.quantization")
    if module is not None and not _INSIDE.get():
        module.FP8GlobalStateManager.reset()
    token = _INSIDE.set(True)
    try:
        yield
    finally:
        _INSIDE.reset(token)
