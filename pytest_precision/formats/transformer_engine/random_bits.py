"""The random bits for stochastic rounding, given to a quantizer in advance or drawn by torch.

The kernels draw theirs in an order of their own, so that any bits are as good. With bits that
depend on layer, step and microbatch alone, two layouts can be compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

BitsOf = Callable[[tuple[int, int]], tuple[Tensor, Tensor]]
"""From the shape [rows, columns] of a matrix to a random byte per element: uint8 [rows, columns]
for its rowwise operand, and uint8 [columns, rows] for the columnwise one."""

_GIVEN = "_given_random_bits"


def give(quantizer: Any, bits_of: BitsOf) -> None:
    """Give a Transformer Engine quantizer the function whose random bits it rounds by."""
    setattr(quantizer, _GIVEN, bits_of)


def drawn(quantizer: Any, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return random bytes to round a matrix rowwise and columnwise: those given, or new ones."""
    bits_of: BitsOf | None = getattr(quantizer, _GIVEN, None)
    if bits_of is not None:
        return bits_of(shape)
    rowwise, columnwise = (
        torch.randint(0, 256, size, dtype=torch.uint8) for size in (shape, shape[::-1])
    )
    return rowwise, columnwise
