"""LayerNorm and RMSNorm, computed in fp32, rounded once, and quantized if asked."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_precision.formats.transformer_engine.storages import DTYPES, matrix
from pytest_precision.te.quantize import quantize


def layernorm_fwd(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    ln_out: Any,
    quantizer: Any,
    otype: int,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> tuple[Any, Tensor, Tensor]:
    """Return LayerNorm's output, and each row's mean and inverse standard deviation."""
    x = input.float()
    mean = x.mean(-1)
    inverse = (x.var(-1, unbiased=False) + eps).rsqrt()
    normalised = (x - mean[..., None]) * inverse[..., None] * _gamma(weight, zero_centered_gamma)
    if bias is not None:
        normalised = normalised + bias.float()
    return _output(normalised, ln_out, quantizer, otype), mean, inverse


def layernorm_bwd(
    dz: Tensor,
    x: Tensor,
    mu: Tensor,
    rsigma: Tensor,
    gamma: Tensor,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return LayerNorm's gradients of its input, weight and bias."""
    gradient, inverse = dz.float().view(x.shape), rsigma.view(*x.shape[:-1], 1)
    normalised = (x.float() - mu.view(*x.shape[:-1], 1)) * inverse
    inner = gradient * _gamma(gamma, zero_centered_gamma)
    along = (inner * normalised).mean(-1, keepdim=True)
    of_input = (inner - inner.mean(-1, keepdim=True) - normalised * along) * inverse
    of_weight, of_bias = matrix(gradient * normalised).sum(0), matrix(gradient).sum(0)
    return of_input.to(dz.dtype), of_weight.to(gamma.dtype), of_bias.to(gamma.dtype)


def rmsnorm_fwd(
    input: Tensor,
    weight: Tensor,
    eps: float,
    ln_out: Any,
    quantizer: Any,
    otype: int,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> tuple[Any, None, Tensor]:
    """Return RMSNorm's output, None instead of means, and each row's inverse root mean square."""
    x = input.float()
    inverse = (x.square().mean(-1) + eps).rsqrt()
    normalised = x * inverse[..., None] * _gamma(weight, zero_centered_gamma)
    return _output(normalised, ln_out, quantizer, otype), None, inverse


def rmsnorm_bwd(
    dz: Tensor,
    x: Tensor,
    rsigma: Tensor,
    gamma: Tensor,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> tuple[Tensor, Tensor]:
    """Return RMSNorm's gradients of its input and weight."""
    of_input, of_weight = _rms_gradients(dz, x, rsigma, gamma, zero_centered_gamma)
    return of_input.to(dz.dtype), of_weight


def rmsnorm_bwd_add(
    dz: Tensor,
    x: Tensor,
    add: Tensor,
    rsigma: Tensor,
    gamma: Tensor,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> tuple[Tensor, Tensor]:
    """Return RMSNorm's gradients, with `add` added to the input's gradient before rounding."""
    of_input, of_weight = _rms_gradients(dz, x, rsigma, gamma, zero_centered_gamma)
    return (of_input + add.float().view(of_input.shape)).to(dz.dtype), of_weight


def _rms_gradients(
    dz: Tensor, x: Tensor, rsigma: Tensor, gamma: Tensor, zero_centered: bool
) -> tuple[Tensor, Tensor]:
    gradient, inverse = dz.float().view(x.shape), rsigma.view(*x.shape[:-1], 1)
    normalised = x.float() * inverse
    inner = gradient * _gamma(gamma, zero_centered)
    along = (inner * normalised).mean(-1, keepdim=True)
    of_weight = matrix(gradient * normalised).sum(0)
    return (inner - normalised * along) * inverse, of_weight.to(gamma.dtype)


def _gamma(weight: Tensor, zero_centered: bool) -> Tensor:
    return weight.float() + (1.0 if zero_centered else 0.0)


def _output(normalised: Tensor, out: Any, quantizer: Any, otype: int) -> Any:
    rounded = normalised.to(DTYPES[int(otype)])
    if quantizer is not None:
        exact = normalised if type(quantizer).__name__ == "Float8Quantizer" else None
        return quantize(rounded, quantizer, out, exact=exact)
    return rounded if out is None else out.copy_(rounded)
