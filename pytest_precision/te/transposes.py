"""Functions that transpose quantized bytes, or reorder (swizzle) scales for GEMM kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pytest_precision.formats.e2m1 import E2M1
from pytest_precision.formats.transformer_engine.storages import matrix, swizzle


def fp8_transpose(data: Tensor, dtype: int, *, out: Tensor | None = None) -> Tensor:
    """Return the transposed bytes of an fp8 tensor; its leading dimensions become the last ones."""
    turned = matrix(data).t().contiguous()
    return _to_output(turned.reshape(data.shape[-1], *data.shape[:-1]), out)


def nvfp4_data_transpose(data: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Unpack NVFP4's 4-bit codes, transpose them, and pack two of them per byte again."""
    codes = E2M1.unpacked(matrix(data)).t().contiguous()
    return _to_output(codes[:, 0::2] | (codes[:, 1::2] << 4), out)


def nvfp4_2d_scale_transpose(input: Tensor, output: Tensor, m_tiles: int, k_tiles: int) -> None:
    """Transpose NVFP4's scales of 16 x 16 blocks, each of which is repeated for 16 rows."""
    tiles = input[0 : m_tiles * 16 : 16, :k_tiles].t().repeat_interleave(16, 0)
    rows = min(tiles.shape[0], output.shape[0])
    output.zero_()
    output[:rows, :m_tiles] = tiles[:rows]


def nvfp4_2d_multi_tensor_transpose(
    rowwise_data_list: Sequence[Tensor],
    columnwise_data_list: Sequence[Tensor],
    rowwise_scale_inv_list: Sequence[Tensor],
    columnwise_scale_inv_list: Sequence[Tensor],
    m_list: Sequence[int],
    k_list: Sequence[int],
) -> None:
    """Fill the columnwise bytes and scales of NVFP4 weights by transposing their rowwise ones."""
    for data, turned, scale, turned_scale, rows, columns in zip(
        rowwise_data_list,
        columnwise_data_list,
        rowwise_scale_inv_list,
        columnwise_scale_inv_list,
        m_list,
        k_list,
        strict=True,
    ):
        nvfp4_data_transpose(data, out=turned)
        nvfp4_2d_scale_transpose(scale, turned_scale, -(-rows // 16), -(-columns // 16))


def swap_first_dims(tensor: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return a tensor with its first two dimensions exchanged."""
    return _to_output(tensor.transpose(0, 1).contiguous(), out)


swizzle_scales_for_gemm_ = swizzle


def multi_tensor_swizzle_scales_for_gemm_unchecked_(tensors: Sequence[Any], *_: Any) -> None:
    """Reorder the scales of tensors into the order in which GEMM kernels read them."""
    for tensor in tensors:
        swizzle(tensor)


def grouped_swizzle_for_gemm(tensor: Any, rowwise: bool, columnwise: bool) -> None:
    """Reorder a grouped tensor's scales, matrix by matrix, as GEMM kernels read them."""
    if tensor._with_gemm_swizzled_scales:
        return
    parts = tensor.split_into_quantized_tensors()
    for part in parts:
        swizzle(part)
    for is_requested, name, of_part in (
        (rowwise, "scale_inv", "_rowwise_scale_inv"),
        (columnwise, "columnwise_scale_inv", "_columnwise_scale_inv"),
    ):
        if is_requested and getattr(tensor, name) is not None:
            scales = [getattr(part, of_part).reshape(-1) for part in parts]
            setattr(tensor, name, torch.cat(scales))
    tensor._with_gemm_swizzled_scales = True


def _to_output(tensor: Tensor, out: Tensor | None) -> Tensor:
    """Return `tensor`, or if the caller passed an `out`, that with `tensor` copied into it."""
    return tensor if out is None else out.copy_(tensor.reshape(out.shape))
