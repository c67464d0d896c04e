"""Pad matrices with zeros for number formats that can only quantize whole blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from pytest_precision.formats.format import Format
from pytest_precision.formats.inputs import Usage
from pytest_precision.formats.quantized import QuantizedTensor

Shape = tuple[int, int]


def padded_shape(format: Format, shape: Shape) -> Shape:
    """Return the smallest shape that holds `shape` and that `format` can quantize."""
    multiple = format.block_multiple
    rows, columns = (-(-length // multiple) * multiple for length in shape)
    return rows, columns


def quantize_padded(
    format: Format, x: torch.Tensor, random_bits: Any = None, *, usage: Usage = "both"
) -> QuantizedTensor:
    """Quantize a matrix, padded with zeros at the end if `format` needs that.

    The Hadamard transform makes the padded rows of the last block nonzero, so the GEMM must
    multiply these too; all other padding is zero in the result.

    Args:
        format: a format of `formats.by_name`, or a `DelayedScalingState`.
        x: [rows, columns].
        random_bits: random bits for the padded shape, if `format` is stochastic.
        usage: which operands to make.
    """
    rows, columns = padded_shape(format, (x.shape[0], x.shape[1]))
    if (rows, columns) != x.shape:
        x = F.pad(x.detach(), (0, columns - x.shape[1], 0, rows - x.shape[0]))
    return format.quantize(x, random_bits, usage=usage)
