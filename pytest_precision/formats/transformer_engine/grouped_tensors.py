"""Transformer Engine's grouped tensors: several matrices in one buffer."""

from __future__ import annotations

from typing import Any

from pytest_precision.formats.transformer_engine.storages import family


def is_group(tensor: Any) -> bool:
    """Return whether a tensor is a grouped one, which has several matrices in one buffer."""
    return hasattr(tensor, "split_into_quantized_tensors")


def members(group: Any) -> list[Any]:
    """Return the matrices of a grouped tensor as views of its buffer, or the items of a list."""
    if isinstance(group, (list, tuple)):
        return list(group)
    parts = list(group.split_into_quantized_tensors())
    for part in parts:
        if family(part) in ("mxfp8", "nvfp4"):
            part._with_gemm_swizzled_scales = group._with_gemm_swizzled_scales
    return parts
