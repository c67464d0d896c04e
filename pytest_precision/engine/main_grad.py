"""Gradients that are accumulated in an fp32 buffer beside a weight, as Megatron's `main_grad`."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_precision.errors import expected_but_got, named


def main_grad(parameter: Tensor) -> Tensor:
    """Return a weight's fp32 buffer `main_grad`, to which a GEMM adds the weight gradient.

    Raises:
        ValueError: there is no buffer, or it is not fp32 of the parameter's shape.
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
                "allocate it in fp32 with the shape of the weight",
            )
        )
    return target


def accumulate(parameter: Tensor) -> None:
    """Add `grad` to `main_grad` unless the GEMM has added the gradient there, and clear `grad`."""
    # The `grad` of a weight of a fused layer is all NaN: it must not be added.
    added = getattr(parameter, "grad_added_to_main_grad", False)
    if parameter.grad is not None and not added:
        parameter.main_grad.add_(parameter.grad)  # type: ignore[attr-defined]
    parameter.grad = None
    parameter.grad_added_to_main_grad = False  # type: ignore[attr-defined]
