"""A CPU stand-in for the GEMM module of APEX, which accumulates weight gradients.

Megatron-core's own linear layers, such as its head, ask for it by name where gradients are
accumulated in the GEMM. Transformer Engine's layers do not.
"""

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType
from typing import Any

from torch import Tensor

from pytest_precision.formats.transformer_engine.storages import matrix

APEX_MODULE = "fused_weight_gradient_mlp_cuda"


def wgrad_gemm_accum_fp32(rows: Tensor, gradient: Tensor, main_grad: Tensor) -> None:
    """Add a linear layer's weight gradient, dy^T @ x, to an fp32 `main_grad`."""
    main_grad.add_(_product(rows, gradient))


def wgrad_gemm_accum_fp16(rows: Tensor, gradient: Tensor, main_grad: Tensor) -> None:
    """Add a linear layer's weight gradient, dy^T @ x, to a 16-bit `main_grad`.

    The sum is computed in fp32 and rounded once.
    """
    main_grad.copy_(main_grad.float() + _product(rows, gradient))


def _product(rows: Tensor, gradient: Tensor) -> Tensor:
    return matrix(gradient).float().t() @ matrix(rows).float()


def modules() -> dict[str, ModuleType]:
    """Return {module name: stand-in} for APEX's module; an empty dict if APEX is installed."""
    if find_spec(APEX_MODULE) is not None:
        return {}
    module: Any = ModuleType(APEX_MODULE, "The stand-in for APEX's module, on the CPU.")
    module.wgrad_gemm_accum_fp32 = wgrad_gemm_accum_fp32
    module.wgrad_gemm_accum_fp16 = wgrad_gemm_accum_fp16
    return {APEX_MODULE: module}
