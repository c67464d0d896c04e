"""Allocation of uninitialised quantized tensors of Transformer Engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from pytest_precision.errors import expected_but_got

_BLOCKS = {"MXFP8Quantizer": 32, "NVFP4Quantizer": 16}
"""Quantizers that refuse a tensor with a part of a block, and the size of a block."""


def create_empty_quantized_tensor(
    quantizer: Any, shape: Sequence[int], dtype: torch.dtype, *_: Any
) -> Any:
    """Allocate an uninitialised tensor in the format of a Transformer Engine quantizer.

    Raises:
        RuntimeError: the shape is not whole blocks, as the compiled quantizers ask of it.
    """
    expect_whole_blocks(type(quantizer).__name__, shape)
    if type(quantizer).__name__ == "Float8Quantizer":
        return _empty_delayed(quantizer, tuple(shape), dtype)
    inner = quantizer.alloc_tensors(tuple(shape), device="cuda")
    if type(quantizer).__name__ == "NVFP4Quantizer" and "_columnwise_data" in inner:
        # The kernels make it of the flattened matrix. The description of the buffers halves the
        # dimension before the last instead, which is 1 in a batch of one sequence.
        flat = shape[-1], math.prod(shape[:-1]) // 2
        inner["_columnwise_data"] = torch.empty(flat, dtype=torch.uint8, device="cuda")
    metadata = quantizer.create_metadata(tuple(shape), dtype=dtype)
    return metadata["cls"].__tensor_unflatten__(inner, metadata, tuple(shape), None)


def expect_whole_blocks(kind: str, shape: Sequence[int]) -> None:
    """Raise RuntimeError if the rows or columns of a block-scaled tensor are not whole blocks."""
    if kind not in _BLOCKS:
        return
    block, rows, columns = _BLOCKS[kind], math.prod(shape[:-1]), shape[-1]
    if rows % block or columns % block:
        raise RuntimeError(
            expected_but_got(
                f"a tensor for {kind} whose rows and columns are multiples of {block}",
                f"{rows} x {columns} (shape {tuple(shape)})",
                "give each rank whole blocks of rows: with sequence parallelism, a rank has its "
                "part of the tokens",
            )
        )


def _empty_delayed(quantizer: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    """Allocate an uninitialised fp8 tensor with one scale, for delayed scaling."""
    of_tensors = import_module("transformer_engine.pytorch.tensor.float8_tensor")
    of_storages = import_module("transformer_engine.pytorch.tensor.storage.float8_tensor_storage")
    turned = (*shape[-1:], *shape[:-1])
    fields = {
        "data": torch.empty(shape, dtype=torch.uint8)
        if quantizer.rowwise_usage or _both_orders()
        else None,
        "data_transpose": torch.empty(turned, dtype=torch.uint8) if is_turned(quantizer) else None,
        "fp8_scale_inv": torch.empty(1, dtype=torch.float32),
        "fp8_dtype": quantizer.dtype,
        "quantizer": quantizer,
    }
    if quantizer.internal:
        return of_storages.Float8TensorStorage(fake_dtype=dtype, **fields)
    return of_tensors.Float8Tensor(shape=shape, dtype=dtype, device="cuda", **fields)


def _both_orders() -> bool:
    """Return whether fp8 GEMMs take layouts other than TN, and so need no transposed copies."""
    utils = import_module("transformer_engine.pytorch.utils")
    return bool(utils.is_non_tn_fp8_gemm_supported())


def is_turned(quantizer: Any) -> bool:
    """Return whether tensors of this quantizer store a transposed copy of their fp8 bytes."""
    return quantizer.columnwise_usage and not _both_orders()
