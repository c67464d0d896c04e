"""Sketches: short random projections of tensors, which estimate how far two tensors are apart.

Elements are added up with random signs, so that the difference of two sketches is the sketch of the
difference, and its norm is that of the difference up to a fourth or so.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache, lru_cache
from hashlib import shake_128
from typing import Any

import numpy as np
import torch
from torch import Tensor

SKETCH_NUMBERS = 16
"""Numbers of a sketch."""

ROW = 64
"""Elements of a large tensor that one product of a matrix and a vector adds up in their own dtype,
before all else is in fp64. In fp32 that is off by one rounding."""

SUMMED_FROM = 4096
"""Elements from which a tensor is large."""

SIGNED = (torch.float32, torch.float64)
"""Dtypes whose elements are given signs as they are."""


class Sketches:
    """Computes short random projections (sketches) of tensors, the same in every process."""

    def __init__(self) -> None:
        self._made: dict[Hashable, tuple[float, ...]] = {}

    def of(self, tensor: Tensor, key: Hashable) -> tuple[float, ...]:
        """Return the random projection of a floating-point tensor, 16 numbers; () for other dtypes.

        Args:
            tensor: any.
            key: the same for tensors of equal elements in the same order alone.
        """
        if key not in self._made:
            self._made[key] = self._sketch(tensor)
        return self._made[key]

    def _sketch(self, tensor: Tensor) -> tuple[float, ...]:
        if not tensor.is_floating_point() or not tensor.numel():
            return ()
        flat = tensor.detach().cpu().reshape(-1)
        flat = flat if flat.dtype in SIGNED else flat.float()  # exact
        rows = flat.to(torch.float64, copy=True) if len(flat) < SUMMED_FROM else _added_up(flat)
        with np.errstate(invalid="ignore", over="ignore"):  # of what has overflowed
            signed = rows.numpy() * _signs(ROW, len(rows))
            whole = len(signed) // SKETCH_NUMBERS * SKETCH_NUMBERS
            numbers = signed[:whole].reshape(-1, SKETCH_NUMBERS).sum(0)
            numbers[: len(signed) - whole] += signed[whole:]
        return tuple(numbers.tolist())


def _added_up(flat: Tensor) -> Tensor:
    """Multiply elements by fixed random signs; return the fp64 sum of every `ROW` consecutive ones.

    It takes a third of the time of a copy in fp64.
    """
    signs = _row_signs(flat.dtype)
    whole = len(flat) // ROW * ROW
    with torch.autocast("cpu", enabled=False):  # around a compiled region, the user's may be on
        rows = (flat[:whole].view(-1, ROW) @ signs).double()
        if whole == len(flat):
            return rows
        return torch.cat((rows, (flat[whole:] @ signs[: len(flat) - whole])[None]))


@cache
def _row_signs(dtype: torch.dtype) -> Tensor:
    return torch.tensor(_signs(0, ROW), dtype=dtype)


@lru_cache(1024)  # of different sizes, all of which share memory
def _signs(start: int, number: int) -> Any:
    """Return an array of fixed random signs (1.0 and -1.0), the same in every process."""
    return _power_of_two_signs((start + number - 1).bit_length())[start : start + number]


@cache
def _power_of_two_signs(power: int) -> Any:
    drawn = shake_128(b"signs of a sketch").digest(-(-(1 << power) // 8))
    return np.unpackbits(np.frombuffer(drawn, np.uint8)) * 2.0 - 1.0
