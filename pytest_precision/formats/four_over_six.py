"""NVFP4's "four over six": try two scales for each block, and take the one with less error.

With the usual scale the largest element of a block becomes 6. With a scale that is 1.5 times larger
it becomes 4, which suits a block whose other large elements would fall between 4 and 6. The block
is quantized with both; if the errors are equal, the usual scale is kept.
"""

from __future__ import annotations

from typing import Literal

import torch

from pytest_precision.formats import e2m1
from pytest_precision.formats.elements import E4M3
from pytest_precision.formats.packed import NVFP4_BLOCK, PackedOperand
from pytest_precision.formats.scaling import FP32_MAXIMUM, nvfp4_tensor_scale
from pytest_precision.formats.tiles import Block, Tile, split_blocks

ErrorMode = Literal["MAE", "MSE"]
"""Whether the error of a block is the sum of magnitudes or of squares of its differences."""


def quantized_with_less_error(
    tile: Tile,
    operand: PackedOperand,
    block: Block,
    *,
    mode: ErrorMode,
    scale_maximum: float,
    scaled_error: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize a tile to NVFP4; each block takes the scale, of two, with the smaller error.

    Return the codes and the scales of the blocks, both uint8.

    Args:
        tile: a part of the source.
        operand: the operand that the tile is for: errors are added up along its rows.
        block: rows and columns that share a scale.
        mode: the error of a block.
        scale_maximum: the largest scale that the amax of the tensor is scaled to.
        scaled_error: whether differences are taken between the values before they are divided by
            the scale of the tensor, which the kernels compute faster.
    """
    amax = operand.amax_of(tile)
    tensor_scale = nvfp4_tensor_scale(amax, scale_maximum)
    largest_tensor = tile.amax(block)
    base = torch.div(largest_tensor, torch.full_like(largest_tensor, e2m1.MAXIMUM)) * tensor_scale
    source = tile.source.float()
    tries = []
    for stretch in (1.5, 1.0):
        scale = torch.empty(base.shape, dtype=torch.uint8, device=base.device)
        E4M3.cast_(base * stretch, scale)
        decoded = E4M3.decode(scale, torch.empty_like(base))
        multiplier = (decoded * tensor_scale.reciprocal()).reciprocal_()
        codes = operand.codes(tile, multiplier.clamp_(max=FP32_MAXIMUM), block).clone()
        values = (
            split_blocks(e2m1.values_of_codes(codes.device)[codes.long()], block) * _each(decoded)
        ).view(codes.shape)
        if scaled_error:
            difference = values - source * tensor_scale
        else:
            reach = torch.full_like(amax, e2m1.MAXIMUM * scale_maximum)
            difference = values * amax / reach - source
        errors = difference.abs() if mode == "MAE" else difference * difference
        tries.append((codes, scale, _summed_tensor(errors, block, operand.block)))
    (codes4, scale4, error4), (codes6, scale6, error6) = tries
    four = error4 < error6
    codes = torch.where(_each(four), split_blocks(codes4, block), split_blocks(codes6, block))
    return codes.view(codes6.shape), torch.where(four, scale4, scale6)


def _each(per_block: torch.Tensor) -> torch.Tensor:
    """Reshape one value per block so that it broadcasts over its block of a blocked matrix."""
    return per_block[:, None, :, None]


def _summed_tensor(errors: torch.Tensor, block: Block, along: Block) -> torch.Tensor:
    """Add up each block's rounding errors in the order in which Transformer Engine's kernels do.

    The 16 errors of a row of the operand (a column of the source if `along` is one) are added one
    after the other. The sums of the 16 rows of a square block are added in halves: the first to the
    ninth, and so on.
    """
    across = 1 if along == (1, NVFP4_BLOCK) else 0
    total = torch.zeros((), dtype=torch.float32, device=errors.device)
    for part in _in_sixteens(errors, across):
        total = total + part
    if block == (NVFP4_BLOCK, NVFP4_BLOCK):
        sums = _in_sixteens(total, 1 - across)
        while len(sums) > 1:
            half = len(sums) // 2
            sums = [upper + lower for upper, lower in zip(sums[:half], sums[half:], strict=True)]
        (total,) = sums
    return total


def _in_sixteens(matrix: torch.Tensor, axis: int) -> list[torch.Tensor]:
    """Split a matrix into 16: the n-th has the n-th element of each run of 16 along `axis`."""
    rows, columns = matrix.shape
    if axis:
        return list(matrix.view(rows, columns // NVFP4_BLOCK, NVFP4_BLOCK).unbind(2))
    return list(matrix.view(rows // NVFP4_BLOCK, NVFP4_BLOCK, columns).unbind(1))
