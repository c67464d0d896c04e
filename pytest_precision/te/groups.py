"""Groups: many tensors of one dtype in one piece of memory, quantized one by one."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from pytest_precision.te.quantize import skipped, write
from pytest_precision.te.storages import family, matrix


def is_group(tensor: Any) -> bool:
    """Return whether a tensor holds the weights of several experts."""
    return hasattr(tensor, "split_into_quantized_tensors")


def members(group: Any) -> list[Any]:
    """Return the tensors of a group as views of its memory; a list is a group already."""
    if isinstance(group, (list, tuple)):
        return list(group)
    parts = list(group.split_into_quantized_tensors())
    for part in parts:
        if family(part) in ("mxfp8", "nvfp4"):
            part._with_gemm_swizzled_scales = group._with_gemm_swizzled_scales
    return parts


def group_quantize(
    tensor: Tensor,
    quantizer: Any,
    num_tensors: int,
    first_dims: Tensor | None = None,
    last_dims: Tensor | None = None,
    tensor_offsets: Tensor | None = None,
    noop_flag: Tensor | None = None,
    output: Any = None,
) -> Any:
    """Quantize consecutive rows of a matrix into the members of a group."""
    if skipped(noop_flag):
        return output
    x = matrix(tensor.detach())
    if output is None:
        storage = import_module(
            "transformer_engine.pytorch.tensor.storage.grouped_tensor_storage"
        ).GroupedTensorStorage
        output = storage.make_grouped_tensor(
            num_tensors,
            first_dims,
            last_dims,
            x.shape[0],
            x.shape[1],
            quantizer=quantizer,
            device="cuda",
            dtype=tensor.dtype,
        )
    output._with_gemm_swizzled_scales = bool(quantizer.optimize_for_gemm)
    start = 0
    for part in members(output):
        rows = part.size(0)
        write(x[start : start + rows], quantizer, part)
        start += rows
    return output


def bgrad_group_quantize(
    tensor: Tensor,
    quantizer: Any,
    num_tensors: int,
    first_dims: Tensor,
    last_dims: Tensor | None = None,
    tensor_offsets: Tensor | None = None,
) -> tuple[Any, Tensor]:
    """Return a quantized group, and each member's bias gradient, summed in fp32."""
    x, sizes = matrix(tensor), first_dims.tolist()
    sums = [part.float().sum(0) for part in torch.split(x[: sum(sizes)], sizes)]
    made = group_quantize(tensor, quantizer, num_tensors, first_dims, last_dims, tensor_offsets)
    return made, torch.stack(sums).to(tensor.dtype)


def splits_to_offsets(first_dims: Tensor, logical_last_dim: int) -> Tensor:
    """Return the offsets of members in elements, and the end of the last one."""
    ends = torch.cumsum(first_dims.to(torch.int64) * logical_last_dim, 0)
    return torch.cat([ends.new_zeros(1), ends])


def splits_to_offsets_multi(
    split_sizes: Any,
    device: Any,
    *,
    strides: list[int],
    include_leading_zero: list[bool],
    dtypes: list[torch.dtype],
    bulk_allocate: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """Return the sizes, and the members' offsets for each stride."""
    sizes = torch.as_tensor(split_sizes).to(torch.int64)
    offsets = []
    for stride, leads, dtype in zip(strides, include_leading_zero, dtypes, strict=True):
        ends = torch.cumsum(sizes, 0) * stride
        offsets.append((torch.cat([ends.new_zeros(1), ends]) if leads else ends).to(dtype))
    return sizes, offsets
