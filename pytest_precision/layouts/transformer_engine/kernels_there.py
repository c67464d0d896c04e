"""Check whether the GPU has Transformer Engine's kernels for a precision or grouped weight.

A cell that it has none for is skipped, with the reason.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch

RECIPES = {
    "fp8_delayed": "DelayedScaling",
    "fp8_current": "Float8CurrentScaling",
    "fp8_block": "Float8BlockScaling",
    "mxfp8": "MXFP8BlockScaling",
    "nvfp4": "NVFP4BlockScaling",
}
"""Precision of a cell to Transformer Engine's recipe."""


_AVAILABLE = {
    "fp8_block": "is_fp8_block_scaling_available",
    "mxfp8": "is_mxfp8_available",
    "nvfp4": "is_nvfp4_available",
}
"""Precision to the question whether the GPU has kernels for it; `is_fp8_available` for others."""


def recipe_of(precision: str) -> Any:
    """Return Transformer Engine's recipe for a precision; None for bf16.

    Raises:
        pytest.skip.Exception: the GPU has no kernels for it.
    """
    if precision not in RECIPES:
        return None
    check_name = _AVAILABLE.get(precision, "is_fp8_available")
    ask = getattr(import_module("transformer_engine.pytorch"), check_name)
    available, reason = ask(return_reason=True)
    if not available:
        pytest.skip(f"Transformer Engine: {reason}")
    return getattr(import_module("transformer_engine.common.recipe"), RECIPES[precision])()


def skip_without_single_weights(precision: str) -> None:
    """Skip the test if the GPU or cuBLASLt lacks kernels for a single weight of all experts.

    No GPU has them in delayed scaling: Transformer Engine itself refuses that.
    """
    grouped = import_module("transformer_engine.pytorch.module.grouped_linear")
    ask = grouped.is_module_grouped_tensor_path_supported
    if precision != "fp8_delayed" and not ask(recipe_of(precision), torch.bfloat16):
        capability = ".".join(map(str, torch.cuda.get_device_capability()))
        library = import_module("transformer_engine_torch").get_cublasLt_version()
        pytest.skip(
            "Transformer Engine has no kernel for a single grouped weight in "
            f"{precision} on compute capability {capability} with cuBLASLt {library}; on 9.0 it "
            "needs cuBLASLt 130400, in fp8_current 130500 and in fp8_block 130600, and fp8_block "
            "works on 9.0 alone"
        )
