"""The three GEMMs of linear layers, and the buffer `main_grad` that weight gradients are added to.

    forward   y  = x rowwise  @ (W rowwise)^T
    dgrad     dx = dy rowwise @ W columnwise
    wgrad     dW = (dy columnwise)^T @ x columnwise

Each GEMM sums in fp32, inside `torch.autocast` too (`formats.product`); y and dx are rounded to
bf16 once. The format of an operand, which the recipe chose, determines whether it has blocks in
one dimension or two, a Hadamard transform, or stochastic rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from pytest_precision.engine.main_grad import main_grad
from pytest_precision.formats.product import as_written, matmul
from pytest_precision.formats.quantized import QuantizedTensor
from pytest_precision.modules.padding import padded_shape, quantize_padded
from pytest_precision.modules.rng import RoundingRng
from pytest_precision.modules.slots import Quantizers

COMPUTE = torch.bfloat16
"""Dtype of inputs and outputs: the kernels quantize from it and round to it."""


class Product(Protocol):
    """The interface of one weight's forward and backward GEMMs."""

    def forward(self, x: Tensor, bias: Tensor | None, *, backward: bool) -> tuple[Tensor, Any]:
        """Return x times weight plus bias, bf16 [rows, out], and what its backward needs.

        Returns:
            y, and what `backward` needs; the latter is complete only if `backward` is true.
        """

    def backward(self, gradient: Tensor, saved_input: Any) -> tuple[Tensor, Tensor]:
        """Compute dx, bf16 [rows, in], and dW, fp32 [out, in], from dy, bf16 [rows, out]."""


@dataclass(frozen=True)
class QuantizedProduct:
    """The GEMMs of one weight on quantized operands, with its quantizers and rounding bits.

    Attributes:
        quantizers: the formats of the input and of the gradient.
        weight: both operands of the weight.
        shape: [out, in].
        rng: random bits for the gradient, used if its format is stochastic.
    """

    quantizers: Quantizers
    weight: QuantizedTensor
    shape: tuple[int, int]
    rng: RoundingRng

    def forward(
        self, x: Tensor, bias: Tensor | None, *, backward: bool
    ) -> tuple[Tensor, QuantizedTensor]:
        """Quantize x and multiply it by the weight; the bias is added in fp32, before rounding."""
        saved_input = quantize_padded(
            self.quantizers.input, x, usage="both" if backward else "rowwise"
        )
        y = matmul(saved_input.rowwise, self.weight.rowwise, turn_right=True)
        y = y[: x.shape[0], : self.shape[0]]
        return (y if bias is None else y + bias.float()).to(COMPUTE), saved_input

    def backward(self, gradient: Tensor, saved_input: QuantizedTensor) -> tuple[Tensor, Tensor]:
        """Quantize dy, and multiply it by the weight to get dx, and by x to get dW."""
        format = self.quantizers.gradient
        shape = padded_shape(format, (gradient.shape[0], gradient.shape[1]))
        quantized_dy = quantize_padded(
            format, gradient, format.random_bits(self.rng, shape, gradient.device)
        )
        dx = matmul(quantized_dy.rowwise, self.weight.columnwise)
        dw = matmul(quantized_dy.columnwise, saved_input.columnwise, turn_left=True)
        out, columns = self.shape
        return dx[: gradient.shape[0], :columns].to(COMPUTE), dw[:out, :columns]


@dataclass(frozen=True)
class PlainProduct:
    """The bf16 GEMMs of one weight, as in torch, but with the weight gradient in fp32.

    Attributes:
        weight: bf16 [out, in].
    """

    weight: Tensor

    def forward(self, x: Tensor, bias: Tensor | None, *, backward: bool) -> tuple[Tensor, Tensor]:
        """Multiply x by the weight and add the bias; return the result, and x for `backward`."""
        return F.linear(x, self.weight, bias), x

    def backward(self, gradient: Tensor, saved_input: Tensor) -> tuple[Tensor, Tensor]:
        """Multiply dy by the weight in bf16 to get dx, and by x in fp32 to get dW."""
        return gradient @ self.weight, gradient.float().t() @ saved_input.float()


@dataclass(frozen=True)
class Call:
    """The settings of one forward pass of a layer, and the tensors saved for its backward.

    Attributes:
        products: one per weight.
        counts: number of rows of x per product, in order.
        grouped: whether all weights are one parameter, and all biases another.
        fused: whether weight gradients are accumulated into `main_grad`.
        backward: whether a backward may follow.
        saved_inputs: what the backward of each product needs; None for a product that has none.
    """

    products: Sequence[Product]
    counts: Sequence[int]
    grouped: bool
    fused: bool
    backward: bool
    saved_inputs: list[Any] = field(default_factory=list)


class Multiply(torch.autograd.Function):
    """Autograd function of a linear layer: multiplies rows of x by one weight or by several.

    `Multiply.apply(x, call, n, *weights, *biases)` returns y, bf16 [rows, out], of n weight
    parameters. A weight without rows has no GEMM; its gradient is zero.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, call: Call, n: int, *parameters: Tensor) -> Tensor:
        """Multiply each row of x, bf16 [rows, in], by its weight; rows are sorted by weight."""
        ctx.call = call
        ctx.weights = parameters[:n]
        ctx.biases = parameters[n:]
        biases: Sequence[Tensor | None] = [None] * len(call.products)
        if ctx.biases:
            biases = ctx.biases[0].unbind() if call.grouped else ctx.biases
        parts = []
        for product, rows, bias in zip(call.products, _split(x, call), biases, strict=True):
            if len(rows) == 0:
                parts.append(x.new_empty(0, ctx.weights[0].shape[-2]))
                call.saved_inputs.append(None)
                continue
            with as_written(rows):
                y, saved_input = product.forward(
                    rows, None if bias is None else bias.to(COMPUTE), backward=call.backward
                )
            parts.append(y)
            call.saved_inputs.append(saved_input if call.backward else None)
        return torch.cat(parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Compute the gradients of x and of all parameters."""
        call: Call = ctx.call
        dx: list[Tensor] = []
        dw: list[Tensor | None] = []
        db: list[Tensor | None] = []
        for product, dy, saved_input in zip(
            call.products, _split(gradient, call), call.saved_inputs, strict=True
        ):
            if saved_input is None:
                dx.append(dy.new_empty(0, ctx.weights[0].shape[-1]))
                dw.append(None)
            else:
                with as_written(dy):
                    x_gradient, weight_gradient = product.backward(dy, saved_input)
                dx.append(x_gradient)
                dw.append(weight_gradient)
            db.append(dy.float().sum(0))
        call.saved_inputs.clear()
        finished = _accumulated_tensors if call.fused else _gradients
        of_weights = finished(ctx.weights, dw, call.grouped)
        of_biases = _gradients(ctx.biases, db, call.grouped) if ctx.biases else []
        return torch.cat(dx), None, None, *of_weights, *of_biases


def _split(rows: Tensor, call: Call) -> Sequence[Tensor]:
    parts: Sequence[Tensor] = rows.split(list(call.counts))  # type: ignore[no-untyped-call]
    return parts


def _gradients(
    parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], grouped: bool
) -> list[Tensor]:
    """Return gradients for autograd, rounded to bf16 and then cast to the parameter's dtype."""
    shape = parameters[0].shape[1:] if grouped else parameters[0].shape
    device = parameters[0].device
    each = [
        torch.zeros(shape, dtype=COMPUTE, device=device)
        if gradient is None
        else gradient.to(COMPUTE)
        for gradient in gradients
    ]
    whole_tensors = [torch.stack(each)] if grouped else each
    return [gradient.to(p.dtype) for gradient, p in zip(whole_tensors, parameters, strict=True)]


def _accumulated_tensors(
    parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], grouped: bool
) -> list[Tensor]:
    """Add weight gradients to `main_grad` in fp32, and return NaNs as the gradients for autograd.

    Code that used those by mistake would show NaN; zeros would go unnoticed in a sum.
    """
    per_parameter = [gradients] if grouped else [[gradient] for gradient in gradients]
    for parameter, ones in zip(parameters, per_parameter, strict=True):
        if not parameter.requires_grad:
            continue
        target = main_grad(parameter)
        for part, gradient in zip(target if grouped else [target], ones, strict=True):
            if gradient is not None:
                part.add_(gradient)
        parameter.grad_added_to_main_grad = True  # type: ignore[attr-defined]
    return [torch.full(p.shape, torch.nan, dtype=p.dtype, device=p.device) for p in parameters]
