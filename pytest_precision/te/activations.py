"""Transformer Engine's activation functions and their gradients, computed on the CPU in fp32.

Results are rounded once to the input's dtype, and quantized if the caller gives a quantizer. A
gated activation is `f(a) * b` of the halves `a` and `b` of a row. Each function of the table gives
the compiled module a forward, a gradient (its name after a `d`) and, where Transformer Engine has
them, a gradient that also sums the bias's, and forms that multiply each row by a scale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pytest_precision.formats.transformer_engine.storages import matrix
from pytest_precision.te.quantize import quantize

Activation = Callable[..., Tensor]


def gelu_by_tanh(x: Tensor) -> Tensor:
    """Return GELU in the form that the kernels compute, with a hyperbolic tangent."""
    return functional.gelu(x, approximate="tanh")


def _qgelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _srelu(x: Tensor) -> Tensor:
    return functional.relu(x).square()


def _gated(function: Activation) -> Activation:
    def activation(x: Tensor) -> Tensor:
        gate, linear = x.chunk(2, -1)
        return function(gate) * linear

    return activation


def _clamped_swiglu(
    x: Tensor, limit: float = 7.0, alpha: float = 1.702, glu_linear_offset: float = 1.0
) -> Tensor:
    gate, linear = x.chunk(2, -1)
    gate, linear = gate.clamp(max=limit), linear.clamp(-limit, limit) + glu_linear_offset
    return gate * torch.sigmoid(alpha * gate) * linear


def _situglu(x: Tensor, beta1: float = 4.0, beta2: float = 25.0) -> Tensor:
    gate, linear = x.chunk(2, -1)
    bounded = beta1 * torch.tanh(gate / beta1) * torch.sigmoid(gate)
    return bounded * beta2 * torch.tanh(linear / beta2)


_PLAIN: dict[str, Activation] = {
    "gelu": gelu_by_tanh,
    "qgelu": _qgelu,
    "relu": functional.relu,
    "srelu": _srelu,
    "silu": functional.silu,
}
_GATES: dict[str, Activation] = {
    "glu": torch.sigmoid,
    "geglu": gelu_by_tanh,
    "qgeglu": _qgelu,
    "reglu": functional.relu,
    "sreglu": _srelu,
    "swiglu": functional.silu,
}
_ALL: dict[str, Activation] = {
    **_PLAIN,
    **{name: _gated(gate) for name, gate in _GATES.items()},
    "clamped_swiglu": _clamped_swiglu,
    "situglu": _situglu,
}
_SCALED = ("swiglu", "clamped_swiglu", "situglu", "srelu")
_GRADIENT_NAMES = {"clamped_swiglu": "clamped_dswiglu"}
"""Names of gradients that do not begin with a `d`."""


def _forward(activation: Activation) -> Callable[..., Any]:
    def forward(input: Tensor, quantizer: Any = None, **options: float) -> Any:
        return _rounded(activation(input.float(), **options), input.dtype, quantizer)

    return forward


def _backward(activation: Activation) -> Callable[..., Any]:
    def backward(grad: Tensor, fwd_input: Tensor, quantizer: Any = None, **options: float) -> Any:
        (input_grad,) = gradients_of(lambda x: activation(x, **options), grad, fwd_input)
        return _rounded(input_grad, fwd_input.dtype, quantizer)

    return backward


def _backward_with_bias(activation: Activation) -> Callable[..., Any]:
    def backward(grad: Tensor, fwd_input: Tensor, quantizer: Any = None) -> tuple[Tensor, Any]:
        (input_grad,) = gradients_of(activation, grad, fwd_input)
        at_once = type(quantizer).__name__ in ("Float8Quantizer", "MXFP8Quantizer")
        summed = input_grad if at_once else input_grad.to(fwd_input.dtype).float()
        of_bias = matrix(summed).sum(0).to(fwd_input.dtype)
        return of_bias, _rounded(input_grad, fwd_input.dtype, quantizer)

    return backward


def _scaled_forward(activation: Activation) -> Callable[..., Any]:
    def forward(
        input: Tensor,
        act_scales: Tensor,
        quantizer: Any = None,
        glu_interleave_size: int = 0,
        **options: float,
    ) -> Any:
        output = activation(_in_halves(input.float(), glu_interleave_size), **options)
        return _rounded(output * act_scales.float().unsqueeze(-1), input.dtype, quantizer)

    return forward


def _scaled_backward(activation: Activation) -> Callable[..., Any]:
    def backward(
        grad: Tensor,
        fwd_input: Tensor,
        act_scales: Tensor,
        quantizer: Any = None,
        glu_interleave_size: int = 0,
        compute_scale_grad: bool = True,
        **options: float,
    ) -> tuple[Any, Tensor | None]:
        def scaled(x: Tensor, scales: Tensor) -> Tensor:
            output = activation(_in_halves(x, glu_interleave_size), **options)
            return output * scales.unsqueeze(-1)

        input_grad, of_scales = gradients_of(scaled, grad, fwd_input, act_scales)
        rounded = _rounded(input_grad, fwd_input.dtype, quantizer)
        return rounded, of_scales.to(act_scales.dtype) if compute_scale_grad else None

    return backward


def gradients_of(function: Activation, gradient: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of a function's inputs in fp32, from the gradient of its result."""
    with torch.enable_grad():
        exact = [tensor.detach().float().requires_grad_() for tensor in inputs]
        output = function(*exact)
        return torch.autograd.grad(output, exact, gradient.detach().float().view(output.shape))


def _rounded(exact: Tensor, dtype: torch.dtype, quantizer: Any) -> Any:
    rounded = exact.to(dtype)
    return rounded if quantizer is None else quantize(rounded, quantizer, exact=exact)


def _in_halves(x: Tensor, interleave: int) -> Tensor:
    """Reorder a GLU's interleaved gate and linear columns into two halves, gates first."""
    if not interleave:
        return x
    *leading, width = x.shape
    turns = x.reshape(*leading, width // (2 * interleave), 2, interleave)
    return turns.transpose(-3, -2).reshape(*leading, width)


def _functions() -> dict[str, Callable[..., Any]]:
    functions = {}
    for name, activation in _ALL.items():
        gradient = _GRADIENT_NAMES.get(name, f"d{name}")
        functions[name], functions[gradient] = _forward(activation), _backward(activation)
        if name in _PLAIN:
            functions[f"dbias_{gradient}"] = _backward_with_bias(activation)
        if name in _SCALED:
            functions[f"scaled_{name}"] = _scaled_forward(activation)
            functions[f"scaled_{gradient}"] = _scaled_backward(activation)
    return functions


FUNCTIONS = _functions()
"""Name in the compiled module to function."""
