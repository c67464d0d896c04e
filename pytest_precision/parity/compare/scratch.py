"""Memory for intermediate results, never freed: a fresh page costs more than the arithmetic."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

LINE = 64
"""Bytes of a cache line: a vector that is written across the border of two takes twice the time."""


class Scratch(threading.local):
    """Memory for intermediate results, of one thread, kept between chunks and calls."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, npt.DTypeLike], npt.NDArray[Any]] = {}

    def take(self, name: str, dtype: npt.DTypeLike, numel: int) -> npt.NDArray[Any]:
        """Return uninitialised elements; the same name and dtype reuse the same memory."""
        buffer = self._buffers.get((name, dtype))
        if buffer is None or len(buffer) < numel:
            size = numel * np.dtype(dtype).itemsize
            memory = np.empty(size + LINE, np.uint8)
            start = -memory.ctypes.data % LINE
            buffer = self._buffers[name, dtype] = memory[start : start + size].view(dtype)
        return buffer[:numel]


scratch = Scratch()
