"""Grouped tensors: several matrices in one buffer, each of which is quantized by itself."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from pytest_precision.formats.transformer_engine.grouped_tensors import members
from pytest_precision.formats.transformer_engine.storages import matrix
from pytest_precision.te.quantize import skipped, write


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
    """Quantize consecutive rows of a matrix into the matrices of a grouped tensor."""
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
    """Quantize each expert's rows of a gradient, and return the experts' bias gradients too.

    The bias gradients are summed in fp32.
    """
    x, sizes = matrix(tensor), first_dims.tolist()
    sums = [part.float().sum(0) for part in torch.split(x[: sum(sizes)], sizes)]
    grouped_tensor = group_quantize(
        tensor, quantizer, num_tensors, first_dims, last_dims, tensor_offsets
    )
    return grouped_tensor, torch.stack(sums).to(tensor.dtype)


def splits_to_offsets(first_dims: Tensor, logical_last_dim: int) -> Tensor:
    """Convert the row counts of groups to element offsets: the groups' beginnings and the end."""
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
    """Return the groups' row counts, int64, and their cumulative sums times each of `strides`."""
    sizes = torch.as_tensor(split_sizes).to(torch.int64)
    offsets = []
    for stride, leads, dtype in zip(strides, include_leading_zero, dtypes, strict=True):
        ends = torch.cumsum(sizes, 0) * stride
        offsets.append((torch.cat([ends.new_zeros(1), ends]) if leads else ends).to(dtype))
    return sizes, offsets
