"""Matrices of any size for formats that take whole blocks only: what is missing counts as 0."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from pytest_precision.formats.format import Format
from pytest_precision.formats.inputs import Usage
from pytest_precision.formats.quantized import QuantizedTensor

Shape = tuple[int, int]


def padded_shape(format: Format, shape: Shape) -> Shape:
    """Return the least shape around `shape` that `format` quantizes."""
    multiple = format.block_multiple
    rows, columns = (-(-length // multiple) * multiple for length in shape)
    return rows, columns


def quantize(
    format: Format, x: torch.Tensor, random_bits: Any = None, *, usage: Usage = "both"
) -> QuantizedTensor:
    """Quantize a matrix with rows and columns of zeros behind it, where `format` needs them.

    The Hadamard transform spreads the last block of rows over all of its padded rows, so that the
    GEMM must multiply these too; all other padding is zero in the result.

    Args:
        format: as `formats.by_name` makes it, or a slot of delayed scaling.
        x: [rows, columns].
        random_bits: of the padded shape, where `format` is stochastic.
        usage: which operands to make.
    """
    rows, columns = padded_shape(format, (x.shape[0], x.shape[1]))
    if (rows, columns) != x.shape:
        x = F.pad(x.detach(), (0, columns - x.shape[1], 0, rows - x.shape[0]))
    return format.quantize(x, random_bits, usage=usage)
