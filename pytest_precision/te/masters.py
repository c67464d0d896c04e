"""Block amaxes, scales and casts of sharded master weights, for weights that are scaled in blocks.

A shard may begin anywhere in its weight.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from pytest_precision.formats import e2m1
from pytest_precision.formats.elements import E4M3, Element
from pytest_precision.formats.scaling import FP32_MAXIMUM, NVFP4_RANGE
from pytest_precision.formats.transformer_engine.storages import ELEMENTS


def fp8_block_scaling_compute_partial_amax(
    tensor: Tensor, amax: Tensor, h: int, w: int, start_offset: int, block_len: int
) -> None:
    """Compute the amax of each square block of a weight over this rank's shard of it."""
    _fill(amax, _block_amaxes(_placed(tensor, h, w, start_offset), block_len, block_len))


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
    factors = _of_shard(scale, (h, w), (block_len, block_len), inp, start_offset)
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
    whole = _placed(input, rows, cols, start_offset)
    _fill(amax_rowwise, _block_amaxes(whole, 1, 32))
    _fill(amax_colwise, _block_amaxes(whole, 32, 1))


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
        _cast(input, _of_shard(factors, (rows, cols), block, input, start_offset), E4M3, out)


def nvfp4_multi_tensor_compute_partial_amax(
    master_weight_list: Sequence[Tensor],
    partial_amax_list: Sequence[Tensor],
    global_amax_list: Sequence[Tensor],
    h_list: Sequence[int],
    w_list: Sequence[int],
    start_offset_list: Sequence[int],
    block_len: int = 16,
) -> None:
    """Compute each weight's block amaxes over this rank's shard, and update its global amax."""
    for shard, partial, largest, rows, columns, start in zip(
        master_weight_list,
        partial_amax_list,
        global_amax_list,
        h_list,
        w_list,
        start_offset_list,
        strict=True,
    ):
        block_amaxes = _block_amaxes(_placed(shard, rows, columns, start), block_len, block_len)
        partial.copy_(block_amaxes.reshape(partial.shape))
        if shard.numel():
            largest.copy_(torch.maximum(largest, block_amaxes.max().reshape(largest.shape)))


def nvfp4_compute_global_scale(global_amax: Tensor, global_scale: Tensor) -> None:
    """Compute the NVFP4 scale of a whole weight from its amax; the scale is 1 for amax 0."""
    global_scale.copy_(_global_scale(global_amax))


def nvfp4_multi_tensor_fused_scale(
    block_amax_list: Sequence[Tensor],
    global_amax_list: Sequence[Tensor],
    per_block_scale_list: Sequence[Tensor],
    target_scale_list: Sequence[Tensor],
    target_amax_list: Sequence[Tensor],
    tile_rows_list: Sequence[int],
    tile_cols_list: Sequence[int],
    rows_padded_list: Sequence[int],
    block_len: int = 16,
) -> None:
    """Compute the block scales of NVFP4 weights, and store them as e4m3 in the weights."""
    for amax, largest, per_block, scale, target_amax, down, across, padded in zip(
        block_amax_list,
        global_amax_list,
        per_block_scale_list,
        target_scale_list,
        target_amax_list,
        tile_rows_list,
        tile_cols_list,
        rows_padded_list,
        strict=True,
    ):
        factor = _global_scale(largest) * torch.full_like(largest, e2m1.MAXIMUM).reciprocal()
        per_block.copy_((amax * factor).clamp(max=FP32_MAXIMUM).reshape(per_block.shape))
        codes = torch.empty((down, across), dtype=torch.uint8)
        E4M3.cast_(per_block.reshape(down, across).clone(), codes)
        _fill(scale.view(padded, -1), codes.repeat_interleave(block_len, 0)[:padded])
        target_amax.copy_(largest.reshape(target_amax.shape))


def nvfp4_multi_tensor_2d_partial_cast(
    inp_list: Sequence[Tensor],
    out_list: Sequence[Tensor],
    scale_list: Sequence[Tensor],
    global_scale_list: Sequence[Tensor],
    h_list: Sequence[int],
    w_list: Sequence[int],
    start_offset_list: Sequence[int],
    block_len: int = 16,
) -> None:
    """Cast this rank's shards to NVFP4 by block scales and global scales.

    Raises:
        NotImplementedError: a shard begins or ends in the middle of a byte.
    """
    for shard, out, scale, global_scale, rows, columns, start in zip(
        inp_list,
        out_list,
        scale_list,
        global_scale_list,
        h_list,
        w_list,
        start_offset_list,
        strict=True,
    ):
        if start % 2 or shard.numel() % 2:
            raise NotImplementedError(
                "expected a shard of whole bytes, each of two elements, but got "
                f"start_offset={start} and {shard.numel()} elements; the stand-in for "
                "Transformer Engine 2.20 lacks others: divide weights at even elements"
            )
        multipliers = _multipliers(scale, global_scale)
        shape, block = (rows, columns), (block_len, block_len)
        scaled = shard.reshape(-1).float() * _of_shard(multipliers, shape, block, shard, start)
        magnitude = scaled.abs()
        magnitude_codes = e2m1.codes_(
            magnitude, torch.empty_like(magnitude), torch.empty_like(magnitude)
        )
        signs = torch.signbit(scaled).to(torch.uint8) << 3
        codes = magnitude_codes.to(torch.uint8) | signs
        out.copy_((codes[0::2] | (codes[1::2] << 4)).reshape(out.shape))


def _placed(shard: Tensor, rows: int, columns: int, start: int) -> Tensor:
    """Return a whole weight in fp32 that holds the shard at its offset, and zeros elsewhere."""
    whole = torch.zeros(rows * columns, dtype=torch.float32)
    whole[start : start + shard.numel()] = shard.reshape(-1).float()
    return whole.view(rows, columns)


def _block_amaxes(x: Tensor, rows: int, columns: int) -> Tensor:
    """Return the largest magnitude of each block; blocks at the edges may be partial."""
    x = functional.pad(x.abs(), (0, -x.shape[1] % columns, 0, -x.shape[0] % rows))
    return x.view(x.shape[0] // rows, rows, x.shape[1] // columns, columns).amax((1, 3))


def _fill(target: Tensor, corner: Tensor) -> None:
    """Write a matrix into the upper left corner of a larger one, and zero the rest."""
    target.zero_()
    target[: corner.shape[0], : corner.shape[1]] = corner


def _of_shard(
    per_block: Tensor, shape: tuple[int, int], block: tuple[int, int], shard: Tensor, start: int
) -> Tensor:
    """Expand per-block values to the elements of a shard: each element gets its block's."""
    rows, columns = shape
    wide = per_block.repeat_interleave(block[0], 0)[:rows]
    wide = wide.repeat_interleave(block[1], 1)[:, :columns]
    return wide.reshape(-1)[start : start + shard.numel()]


def _cast(shard: Tensor, factors: Tensor, element: Element, out: Tensor) -> None:
    codes = torch.empty(shard.numel(), dtype=torch.uint8)
    element.cast_(shard.reshape(-1).float() * factors, codes)
    out.copy_(codes.reshape(out.shape))


def _global_scale(amax: Tensor) -> Tensor:
    scale = (torch.full_like(amax, NVFP4_RANGE) / amax).clamp_(max=FP32_MAXIMUM)
    return scale.masked_fill_(amax <= 0, 1.0)


def _multipliers(scale: Tensor, global_scale: Tensor) -> Tensor:
    """Return the factor by which each block's values are multiplied before the 4-bit cast."""
    inverse = torch.where(global_scale <= 0, 1.0, global_scale).reciprocal()
    codes = torch.empty(scale.shape, dtype=torch.uint8)
    E4M3.cast_(scale.clone(), codes)
    read_back = E4M3.decode(codes, torch.empty(scale.shape, dtype=torch.float32))
    multipliers = (read_back * inverse).reciprocal()
    return multipliers.masked_fill_(read_back <= 0, FP32_MAXIMUM).clamp_(max=FP32_MAXIMUM)
