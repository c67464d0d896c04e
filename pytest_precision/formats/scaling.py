"""The arithmetic by which all formats compute scales from amaxes, in fp32.

`torch.div(448.0, t)` and `448.0 / t` differ in the last bit for a quarter of all t: the second is
`t.reciprocal() * 448`. Exponents are read from bit patterns: torch's log2 is not exact.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from pytest_precision.formats.elements import E4M3, Element
from pytest_precision.formats.tiles import FLOAT_BITS, empty_scratch, tile_spans

ReduceAmax = Callable[[torch.Tensor], torch.Tensor]
"""A MAX reduction over ranks: takes the fp32 amaxes of this rank, returns the largest of all."""

NVFP4_RANGE = E4M3.maximum * 6.0
"""The largest block scale times the largest element; the amax of the tensor is scaled to it."""

FP32_MAXIMUM = torch.finfo(torch.float32).max
_EXPONENT_BITS = -(1 << 23)


def tensor_amax(x: torch.Tensor, *, keep_nan: bool = False) -> torch.Tensor:
    """Compute the largest magnitude of a matrix, fp32 [1]; it is 0 if the matrix is empty.

    NaN is ignored unless `keep_nan`, which makes the amax of a matrix with a NaN NaN.
    """
    bits = FLOAT_BITS[x.dtype]
    peaks = [torch.zeros((), dtype=bits.dtype, device=x.device)]
    for rows, columns in tile_spans(x.shape[0], x.shape[1], x.device):
        part = x[rows, columns].view(bits.dtype)
        magnitudes = empty_scratch("bits", tuple(part.shape), part, bits.dtype)
        peak = torch.bitwise_and(part, bits.magnitude, out=magnitudes).amax()
        if not keep_nan and int(peak) > bits.infinity:
            peak = magnitudes.masked_fill_(magnitudes > bits.infinity, 0).amax()
        peaks.append(peak)
    return torch.stack(peaks).amax(0, keepdim=True).view(x.dtype).float()


def row_amaxes(x: torch.Tensor) -> torch.Tensor:
    """Compute the largest magnitude of each row of a matrix, fp32 [rows]; NaN is ignored."""
    return x.abs().masked_fill_(x.isnan(), 0.0).amax(1).float()


def scale_from_amax(
    amax: torch.Tensor,
    maximum: float,
    *,
    power_of_two: bool = False,
    epsilon: float = 0.0,
    if_infinite: float = FP32_MAXIMUM,
) -> torch.Tensor:
    """Compute the factor that scales `amax` to `maximum`.

    This is `compute_scale_from_amax` of the kernels.

    Args:
        amax: fp32.
        maximum: largest finite value of the element.
        power_of_two: whether to round the scale down to a power of two.
        epsilon: lower bound of the amax; a smaller amax is replaced by it.
        if_infinite: the scale where the quotient overflows.

    Returns:
        The scale, fp32; it is 1 where the amax is 0 or not finite.
    """
    amax = amax.clamp(min=epsilon)
    scale = torch.full_like(amax, maximum).div_(amax)
    usable = amax.isfinite() & (amax > 0)
    scale.masked_fill_(scale.isinf(), if_infinite)
    if power_of_two:
        scale.view(torch.int32).bitwise_and_(_EXPONENT_BITS)
    return scale.masked_fill_(~usable, 1.0)


def e8m0_ceil(amax: torch.Tensor, element: Element) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the least e8m0 scale with which `amax` does not saturate, as Transformer Engine does.

    For the code, multiplying by the rounded reciprocal of 448 or 57344 equals dividing, for every
    fp32 amax.

    Returns:
        The uint8 codes, and the multipliers 2**(127 - code) in fp32.
    """
    # Up to 2**-127, code 0 is enough; without the threshold, a mantissa that is not 0 would carry.
    quotient = functional.threshold(amax * element.reciprocal, 2.0**-127, 0.0)
    codes = quotient.view(torch.int32).add_(0x7FFFFF).bitwise_right_shift_(23).clamp_(max=254)
    inverse = (254 - codes).bitwise_left_shift_(23).clamp_(min=1 << 22)
    return codes.to(torch.uint8), inverse.view(torch.float32)


def e8m0_floor(amax: torch.Tensor, element: Element) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the e8m0 scale of the OCP Microscaling specification, as torchao does.

    Its exponent is that of `amax` minus that of the element, so elements saturate where
    amax / 2**exponent exceeds the element's largest mantissa. NaN gives code 255. torchao divides
    by at least 2**-126, although code 0 is read back as 2**-127.

    Returns:
        The uint8 codes, and the fp32 multipliers.
    """
    exponents = amax.view(torch.int32) >> 23
    codes = (exponents - element.exponent).clamp_(min=0).masked_fill_(amax.isnan(), 255)
    inverse = (254 - codes.clamp(min=1)).clamp_(min=0).bitwise_left_shift_(23)
    return codes.to(torch.uint8), inverse.view(torch.float32)


ScaleOfBlocks = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Computes the uint8 codes of scales, and fp32 multipliers, from the fp32 amaxes of blocks."""


def nvfp4_tensor_scale(
    tensor_amax: torch.Tensor, scale_maximum: float = E4M3.maximum
) -> torch.Tensor:
    """Compute NVFP4's scale of a tensor: largest block scale times 6, divided by the amax.

    It is 1 where the amax is 0, or so large that the factor would be 0.
    """
    scale = torch.full_like(tensor_amax, scale_maximum * 6.0).div_(tensor_amax)
    scale.clamp_(max=FP32_MAXIMUM)
    return scale.masked_fill_((tensor_amax == 0) | (scale == 0), 1.0)


def nvfp4_scaling(tensor_amax: torch.Tensor) -> ScaleOfBlocks:
    """Return the function from NVFP4 block amaxes to e4m3 scales, for a tensor with this amax.

    A block whose scale has code 0 is multiplied by the largest finite number.

    Args:
        tensor_amax: fp32 [1], or one for each block.
    """
    tensor_scale = nvfp4_tensor_scale(tensor_amax)
    encoding = tensor_scale * torch.full_like(tensor_amax, 6.0).reciprocal_()
    decoding = tensor_scale.reciprocal()

    def scaling(amax: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        codes = torch.empty(amax.shape, dtype=torch.uint8, device=amax.device)
        scale = amax * encoding
        E4M3.cast_(scale, codes)
        multiplier = E4M3.decode(codes, scale).mul_(decoding).reciprocal_()
        return codes, multiplier.clamp_(max=FP32_MAXIMUM)

    return scaling


def nvfp4_scaling_torchao(tensor_amax: torch.Tensor) -> ScaleOfBlocks:
    """Return torchao's function from NVFP4 block amaxes to e4m3 scales, none below 2**-6.

    It divides twice, where `nvfp4_scaling` multiplies once. torchao gets the scale of the tensor
    from its caller; here it is computed from the amax, and is 1 for a tensor of zeros. A NaN makes
    the amax NaN, as in torch, and with it every scale. For a tensor amax below 5e-34 the multiplier
    overflows.

    Args:
        tensor_amax: fp32 [1].
    """
    tensor_scale = tensor_amax / torch.full_like(tensor_amax, NVFP4_RANGE)
    tensor_scale.masked_fill_(tensor_amax == 0, 1.0)
    inverse = tensor_scale.reciprocal()

    def scaling(amax: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        codes = torch.empty(amax.shape, dtype=torch.uint8, device=amax.device)
        scale = torch.div(amax, torch.full_like(amax, 6.0)).div_(tensor_scale).clamp_(min=2.0**-6)
        E4M3.cast_(scale, codes)
        return codes, torch.div(inverse, E4M3.decode(codes, scale))

    return scaling
