"""Scratch: memory for intermediate results, and what bit patterns are widened into there.

It is never freed: a fresh page costs more than the arithmetic.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pytest_precision.parity.compare.bit_patterns import Bits

LINE = 64
"""Bytes of a cache line: a vector that is written across the border of two takes twice the time."""

BLAS = 2**13
"""Elements per dot product. For somewhat more of them OpenBLAS starts threads."""

FLOAT_LIMITS = {np.dtype(dtype): np.finfo(dtype) for dtype in (np.float32, np.float64)}

Working = npt.NDArray[Any]
"""Values of shape (n,) as float32 or float64."""


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


def widened(elements: Bits, dtype: torch.dtype, name: str) -> Working:
    """Return the values of bit patterns, in the scratch `name` unless numpy computes with them."""
    if dtype in (torch.float32, torch.complex64):
        return elements.view(np.float32)
    if dtype in (torch.float64, torch.complex128):
        return elements.view(np.float64).reshape(-1)
    wide = np.float32 if dtype.is_floating_point else np.float64
    values = scratch.take(name, wide, len(elements))
    torch.from_numpy(values).copy_(torch.from_numpy(elements).view(dtype))
    return values


def finite_norm(values: Working) -> float:
    """Return the norm of the finite values."""
    squares = 0.0
    for begin in range(0, len(values), BLAS):
        part = values[begin : begin + BLAS]
        squares += float(part.dot(part))
    # Between these bounds no square overflowed, and those that vanished did not matter.
    if math.sqrt(FLOAT_LIMITS[values.dtype].tiny) <= squares < math.inf:
        return math.sqrt(squares)
    finite = np.where(np.isfinite(values), values, 0)
    largest = float(np.abs(finite).max())
    return largest * math.sqrt(np.square(finite / largest).sum()) if largest else 0.0
