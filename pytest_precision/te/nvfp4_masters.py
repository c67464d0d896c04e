"""Amaxes, scales and casts of sharded master weights, for NVFP4 weights in 16 x 16 blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pytest_precision.formats import e2m1
from pytest_precision.formats.elements import E4M3
from pytest_precision.formats.scaling import FP32_MAXIMUM, NVFP4_RANGE
from pytest_precision.te.masters import block_amaxes, fill, of_shard, placed


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
        found = block_amaxes(placed(shard, rows, columns, start), block_len, block_len)
        partial.copy_(found.reshape(partial.shape))
        if shard.numel():
            largest.copy_(torch.maximum(largest, found.max().reshape(largest.shape)))


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
        fill(scale.view(padded, -1), codes.repeat_interleave(block_len, 0)[:padded])
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
                f"expected a shard of whole bytes but got start_offset={start} and "
                f"{shard.numel()} elements, two of which share a byte in NVFP4; the stand-in for "
                "Transformer Engine 2.20 lacks such shards"
            )
        multipliers = _multipliers(scale, global_scale)
        shape, block = (rows, columns), (block_len, block_len)
        scaled = shard.reshape(-1).float() * of_shard(multipliers, shape, block, shard, start)
        magnitude = scaled.abs()
        found = e2m1.codes_(magnitude, torch.empty_like(magnitude), torch.empty_like(magnitude))
        signs = torch.signbit(scaled).to(torch.uint8) << 3
        codes = found.to(torch.uint8) | signs
        out.copy_((codes[0::2] | (codes[1::2] << 4)).reshape(out.shape))


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
