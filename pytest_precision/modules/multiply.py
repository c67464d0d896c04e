"""The three GEMMs of linear layers, and where the gradient of the weight goes.

    forward   y  = x rowwise  @ (W rowwise)^T
    dgrad     dx = dy rowwise @ W columnwise
    wgrad     dW = (dy columnwise)^T @ x columnwise

Each multiplies dequantized operands in fp32, inside `torch.autocast` too; y and dx are rounded to
bf16 once. Whether an operand has blocks in one dimension or two, a Hadamard transform or stochastic
rounding is its format's affair: the recipe chose it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from pytest_precision.formats.quantized import QuantizedTensor
from pytest_precision.modules.main_grad import main_grad
from pytest_precision.modules.padding import padded_shape, quantize
from pytest_precision.modules.rng import RoundingRng
from pytest_precision.modules.slots import Quantizers

COMPUTE = torch.bfloat16
"""Dtype of inputs and outputs: what the kernels quantize, and what they round to."""


class Product(Protocol):
    """The multiplication by one weight."""

    def forward(self, x: Tensor, bias: Tensor | None, *, backward: bool) -> tuple[Tensor, Any]:
        """y, bf16 [rows, out], of x, bf16 [rows, in]; and what `backward` needs, if it follows."""

    def backward(self, gradient: Tensor, kept: Any) -> tuple[Tensor, Tensor]:
        """dx, bf16 [rows, in], and dW, fp32 [out, in], of dy, bf16 [rows, out]."""


@dataclass(frozen=True)
class QuantizedProduct:
    """The multiplication of quantized operands.

    Attributes:
        quantizers: of the input and of the gradient.
        weight: both operands of the weight.
        shape: [out, in].
        rng: random bits of the gradient, where its format is stochastic.
    """

    quantizers: Quantizers
    weight: QuantizedTensor
    shape: tuple[int, int]
    rng: RoundingRng

    def forward(
        self, x: Tensor, bias: Tensor | None, *, backward: bool
    ) -> tuple[Tensor, QuantizedTensor]:
        """As `Product`; the bias is added in fp32, before rounding."""
        kept = quantize(self.quantizers.input, x, usage="both" if backward else "rowwise")
        y = kept.rowwise.dequantize() @ self.weight.rowwise.dequantize().t()
        y = y[: x.shape[0], : self.shape[0]]
        return (y if bias is None else y + bias.float()).to(COMPUTE), kept

    def backward(self, gradient: Tensor, kept: QuantizedTensor) -> tuple[Tensor, Tensor]:
        """As `Product`."""
        format = self.quantizers.gradient
        shape = padded_shape(format, (gradient.shape[0], gradient.shape[1]))
        made = quantize(format, gradient, format.random_bits(self.rng, shape, gradient.device))
        dx = made.rowwise.dequantize() @ self.weight.columnwise.dequantize()
        dw = made.columnwise.dequantize().t() @ kept.columnwise.dequantize()
        out, columns = self.shape
        return dx[: gradient.shape[0], :columns].to(COMPUTE), dw[:out, :columns]


@dataclass(frozen=True)
class PlainProduct:
    """The multiplication of bf16 operands: that of torch, but for a weight gradient in fp32.

    Attributes:
        weight: bf16 [out, in].
    """

    weight: Tensor

    def forward(self, x: Tensor, bias: Tensor | None, *, backward: bool) -> tuple[Tensor, Tensor]:
        """As `Product`."""
        return F.linear(x, self.weight, bias), x

    def backward(self, gradient: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """As `Product`."""
        return gradient @ self.weight, gradient.float().t() @ kept.float()


@dataclass(frozen=True)
class Call:
    """One forward through one or more weights.

    Attributes:
        products: one a weight.
        counts: rows of x that each of them multiplies, in order.
        grouped: the weights are one parameter, and the biases another.
        fused: accumulate weight gradients into `main_grad`.
        backward: whether a backward may follow.
        kept: what the backward of each product needs.
    """

    products: Sequence[Product]
    counts: Sequence[int]
    grouped: bool
    fused: bool
    backward: bool
    kept: list[Any] = field(default_factory=list)


class Multiply(torch.autograd.Function):
    """`Multiply.apply(x, call, n, *weights, *biases)`: y, bf16 [rows, out], of n weight parameters.

    A weight that gets no rows has no GEMM, and a gradient of zeros.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, call: Call, n: int, *parameters: Tensor) -> Tensor:
        """Multiply the rows of x, bf16 [rows, in], which are sorted by weight."""
        ctx.call, ctx.weights, ctx.biases = call, parameters[:n], parameters[n:]
        biases: Sequence[Tensor | None] = [None] * len(call.products)
        if ctx.biases:
            biases = ctx.biases[0].unbind() if call.grouped else ctx.biases
        parts = []
        for product, rows, bias in zip(call.products, _split(x, call), biases, strict=True):
            if len(rows) == 0:
                parts.append(x.new_empty(0, ctx.weights[0].shape[-2]))
                call.kept.append(None)
                continue
            with _as_written(rows):
                y, kept = product.forward(
                    rows, None if bias is None else bias.to(COMPUTE), backward=call.backward
                )
            parts.append(y)
            call.kept.append(kept if call.backward else None)
        return torch.cat(parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """The gradients of x and of all parameters."""
        call: Call = ctx.call
        dx: list[Tensor] = []
        dw: list[Tensor | None] = []
        db: list[Tensor | None] = []
        for product, dy, kept in zip(call.products, _split(gradient, call), call.kept, strict=True):
            if kept is None:
                dx.append(dy.new_empty(0, ctx.weights[0].shape[-1]))
                dw.append(None)
            else:
                with _as_written(dy):
                    x_gradient, weight_gradient = product.backward(dy, kept)
                dx.append(x_gradient)
                dw.append(weight_gradient)
            db.append(dy.float().sum(0))
        call.kept.clear()
        finished = _accumulated if call.fused else _gradients
        of_weights = finished(ctx.weights, dw, call.grouped)
        of_biases = _gradients(ctx.biases, db, call.grouped) if ctx.biases else []
        return torch.cat(dx), None, None, *of_weights, *of_biases


def _as_written(operand: Tensor) -> AbstractContextManager[Any]:
    """Switch autocast off, which would round operands that are in fp32 on purpose."""
    return torch.autocast(operand.device.type, enabled=False)


def _split(rows: Tensor, call: Call) -> Sequence[Tensor]:
    parts: Sequence[Tensor] = rows.split(list(call.counts))  # type: ignore[no-untyped-call]
    return parts


def _gradients(
    parameters: Sequence[Tensor], made: Sequence[Tensor | None], grouped: bool
) -> list[Tensor]:
    """Gradients that autograd accumulates: rounded to bf16, whatever dtype the parameter has."""
    shape = parameters[0].shape[1:] if grouped else parameters[0].shape
    device = parameters[0].device
    each = [
        torch.zeros(shape, dtype=COMPUTE, device=device) if one is None else one.to(COMPUTE)
        for one in made
    ]
    whole = [torch.stack(each)] if grouped else each
    return [one.to(p.dtype) for one, p in zip(whole, parameters, strict=True)]


def _accumulated(
    parameters: Sequence[Tensor], made: Sequence[Tensor | None], grouped: bool
) -> list[Tensor]:
    """Add to `main_grad` of what is trained in fp32; what is returned for autograd is poison.

    Whoever used it as a gradient would see NaN, where zeros would be lost in a sum.
    """
    per_parameter = [made] if grouped else [[one] for one in made]
    for parameter, ones in zip(parameters, per_parameter, strict=True):
        if not parameter.requires_grad:
            continue
        target = main_grad(parameter)
        for part, one in zip(target if grouped else [target], ones, strict=True):
            if one is not None:
                part.add_(one)
        parameter.grad_added_to_main_grad = True  # type: ignore[attr-defined]
    return [torch.full(p.shape, torch.nan, dtype=p.dtype, device=p.device) for p in parameters]
