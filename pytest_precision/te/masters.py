"""Block amaxes and casts of sharded master weights, for blockwise fp8 and MXFP8.

A shard may begin anywhere in its weight.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from pytest_precision.formats.elements import E4M3, Element
from pytest_precision.te.storages import ELEMENTS


def fp8_block_scaling_compute_partial_amax(
    tensor: Tensor, amax: Tensor, h: int, w: int, start_offset: int, block_len: int
) -> None:
    """Compute the amax of each square block of a weight over this rank's shard of it."""
    fill(amax, block_amaxes(placed(tensor, h, w, start_offset), block_len, block_len))


def fp8_block_scaling_partial_cast(
    inp: Tensor,
    out: Tensor,
    scale: Tensor,
    h: int,
    w: int,
    start_offset: int,
    block_len: int,
    out_dtype: int,
) -> None:
    """Cast this rank's shard of a weight to fp8, each element by the scale of its block."""
    factors = of_shard(scale, (h, w), (block_len, block_len), inp, start_offset)
    _cast(inp, factors, ELEMENTS[int(out_dtype)], out)


def mxfp8_scaling_compute_partial_amax(
    input: Tensor,
    amax_rowwise: Tensor,
    amax_colwise: Tensor,
    rows: int,
    cols: int,
    start_offset: int,
) -> None:
    """Compute the amaxes of a weight's 1 x 32 and 32 x 1 blocks over this rank's shard of it."""
    whole = placed(input, rows, cols, start_offset)
    fill(amax_rowwise, block_amaxes(whole, 1, 32))
    fill(amax_colwise, block_amaxes(whole, 32, 1))


def mxfp8_scaling_partial_cast(
    input: Tensor,
    output_rowwise: Tensor,
    output_colwise: Tensor,
    scale_inv_rowwise: Tensor,
    scale_inv_colwise: Tensor,
    rows: int,
    cols: int,
    start_offset: int,
) -> None:
    """Cast this rank's shard of a weight to MXFP8, by rowwise and by columnwise scales."""
    for block, scale, out in (
        ((1, 32), scale_inv_rowwise, output_rowwise),
        ((32, 1), scale_inv_colwise, output_colwise),
    ):
        codes = scale[: rows // block[0], : cols // block[1]].to(torch.int32)
        # 2**(127 - code); for code 254 that is the subnormal 2**-127, whose bits are these.
        factors = (254 - codes).bitwise_left_shift_(23).clamp_(min=1 << 22).view(torch.float32)
        _cast(input, of_shard(factors, (rows, cols), block, input, start_offset), E4M3, out)


def placed(shard: Tensor, rows: int, columns: int, start: int) -> Tensor:
    """Return a whole weight in fp32 that holds the shard at its offset, and zeros elsewhere."""
    whole = torch.zeros(rows * columns, dtype=torch.float32)
    whole[start : start + shard.numel()] = shard.reshape(-1).float()
    return whole.view(rows, columns)


def block_amaxes(x: Tensor, rows: int, columns: int) -> Tensor:
    """Return the largest magnitude of each block; blocks at the edges may be partial."""
    x = functional.pad(x.abs(), (0, -x.shape[1] % columns, 0, -x.shape[0] % rows))
    return x.view(x.shape[0] // rows, rows, x.shape[1] // columns, columns).amax((1, 3))


def fill(target: Tensor, found: Tensor) -> None:
    """Write a matrix into the upper left corner of a larger one, and zero the rest."""
    target.zero_()
    target[: found.shape[0], : found.shape[1]] = found


def of_shard(
    per_block: Tensor, shape: tuple[int, int], block: tuple[int, int], shard: Tensor, start: int
) -> Tensor:
    """Return, for each element of a shard, the value of its block in `per_block`."""
    rows, columns = shape
    wide = per_block.repeat_interleave(block[0], 0)[:rows]
    wide = wide.repeat_interleave(block[1], 1)[:, :columns]
    return wide.reshape(-1)[start : start + shard.numel()]


def _cast(shard: Tensor, factors: Tensor, element: Element, out: Tensor) -> None:
    codes = torch.empty(shard.numel(), dtype=torch.uint8)
    element.cast_(shard.reshape(-1).float() * factors, codes)
    out.copy_(codes.reshape(out.shape))
