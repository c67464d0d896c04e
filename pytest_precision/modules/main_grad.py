"""main_grad: the buffer that a weight gradient is accumulated in, by the GEMM or after it."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_precision.errors import expected_but_got, named


def main_grad(parameter: Tensor) -> Tensor:
    """Return the buffer that a fused weight gradient is accumulated in.

    Raises:
        ValueError: there is none, or not an fp32 one of the parameter's shape.
    """
    target = getattr(parameter, "main_grad", None)
    if not isinstance(target, Tensor):
        raise ValueError(
            expected_but_got(
                f"a main_grad on a weight of shape {tuple(parameter.shape)}",
                named("main_grad", target),
                "give every weight an fp32 buffer, or turn fuse_wgrad_accumulation off",
            )
        )
    if target.dtype != torch.float32 or target.shape != parameter.shape:
        raise ValueError(
            expected_but_got(
                f"main_grad to be fp32 of shape {tuple(parameter.shape)}",
                f"{target.dtype} of shape {tuple(target.shape)} (Tensor)",
                "allocate it like the weight",
            )
        )
    return target


def accumulate(parameter: Tensor) -> None:
    """Add what autograd left in `grad` to `main_grad`, unless the GEMM has added it there."""
    # What a fused layer returns to autograd is poison, and is dropped.
    added = getattr(parameter, "grad_added_to_main_grad", False)
    if parameter.grad is not None and not added:
        parameter.main_grad.add_(parameter.grad)  # type: ignore[attr-defined]
    parameter.grad = None
    parameter.grad_added_to_main_grad = False  # type: ignore[attr-defined]
