"""Products of quantized matrices, in the order in which the kernels multiply.

A GEMM of NVFP4 sums the products within a block, which fp32 holds exactly, adds block after block
in fp32, and multiplies the sums by the scales of both tensors, as cuBLAS does by its `alpha`. Where
only one operand has such a scale, it is that one's. Other formats sum in torch's order.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_precision.formats.quantized import Operand

BLOCK = 16
"""Elements of NVFP4 whose products the hardware sums before it adds them to what it has."""


class Factored(NamedTuple):
    """A GEMM's operand: fp32 values to multiply, and a factor for the sums of products.

    Attributes:
        values: fp32 [rows, columns], what the GEMM multiplies.
        amax: fp32 [1], a part of the factor; None if there is no factor.
        range: what the amax is divided by to get the factor.
    """

    values: Tensor
    amax: Tensor | None = None
    range: float = 1.0


def factored(operand: Operand) -> Factored:
    """Split a quantized matrix into values to multiply, and a factor for the sums of products."""
    values, amax = operand.summed()
    return Factored(values) if amax is None else Factored(values, amax, operand.range)


def as_written(operand: Tensor) -> AbstractContextManager[Any]:
    """Return a context without autocast, which would round fp32 operands to fewer bits."""
    kind = operand.device.type
    # To enter torch's context takes as long as a small product.
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def multiply(a: Factored, b: Factored, *, turn_a: bool = False, turn_b: bool = False) -> Tensor:
    """Return a @ b in fp32, with a transposed first if `turn_a`, and b if `turn_b`."""
    left, right = (a.values.t() if turn_a else a.values), (b.values.t() if turn_b else b.values)
    with as_written(left):
        amaxes = [factor.amax for factor in (a, b) if factor.amax is not None]
        if not amaxes:
            return left @ right
        sums = left.new_zeros(left.shape[0], right.shape[1])
        for start in range(0, left.shape[1], BLOCK):
            span = slice(start, start + BLOCK)
            sums.addmm_(left[:, span], right[span])
        whole = amaxes[0] if len(amaxes) == 1 else amaxes[0] * amaxes[1]
        return sums.mul_(whole * torch.full_like(whole, a.range * b.range).reciprocal_())


def matmul(
    left: Operand, right_operand: Operand, *, turn_left: bool = False, turn_right: bool = False
) -> Tensor:
    """Multiply quantized matrices in fp32; `turn_left` and `turn_right` transpose them first."""
    return multiply(factored(left), factored(right_operand), turn_a=turn_left, turn_b=turn_right)
