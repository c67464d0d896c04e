"""APEX's compiled module for linear layers that accumulate their weights' gradients, on the CPU.

Megatron-core's own linear layers, such as its head, ask for it by name where gradients are
accumulated in the GEMM. Transformer Engine's layers do not.
"""

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType
from typing import Any

from torch import Tensor

from pytest_precision.te.storages import matrix

MODULE = "fused_weight_gradient_mlp_cuda"


def wgrad_gemm_accum_fp32(rows: Tensor, gradient: Tensor, main_grad: Tensor) -> None:
    """Add the gradient of a weight to its buffer in fp32."""
    main_grad.add_(_product(rows, gradient))


def wgrad_gemm_accum_fp16(rows: Tensor, gradient: Tensor, main_grad: Tensor) -> None:
    """Add the gradient of a weight to its buffer in 16 bits, and round the sum once."""
    main_grad.copy_(main_grad.float() + _product(rows, gradient))


def _product(rows: Tensor, gradient: Tensor) -> Tensor:
    return matrix(gradient).float().t() @ matrix(rows).float()


def modules() -> dict[str, ModuleType]:
    """Return the stand-in module by its name; empty if APEX itself is installed."""
    if find_spec(MODULE) is not None:
        return {}
    made: Any = ModuleType(MODULE, "The stand-in for APEX's module, on the CPU.")
    made.wgrad_gemm_accum_fp32 = wgrad_gemm_accum_fp32
    made.wgrad_gemm_accum_fp16 = wgrad_gemm_accum_fp16
    return {MODULE: made}
