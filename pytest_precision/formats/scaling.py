"""From an amax to a scale: the arithmetic of every family, in fp32 rounded to nearest.

`torch.div(448.0, t)` and `448.0 / t` differ in the last bit for a quarter of all t: the second is
`t.reciprocal() * 448`. Exponents are read from bit patterns: torch's log2 is not exact.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from pytest_precision.formats.elements import E4M3, Element
from pytest_precision.formats.tiles import BITS, scratch, spans

ReduceAmax = Callable[[torch.Tensor], torch.Tensor]
"""Reduces amaxes over ranks: gets this rank's fp32 tensor, returns the largest of all ranks."""

NVFP4_RANGE = E4M3.maximum * 6.0
"""Largest block scale times largest element: what the tensor's amax is mapped to."""

FP32_MAXIMUM = torch.finfo(torch.float32).max
_EXPONENT_BITS = -(1 << 23)


def tensor_amax(x: torch.Tensor, *, keep_nan: bool = False) -> torch.Tensor:
    """Largest magnitude of a matrix, fp32 [1], NaN ignored unless kept, and 0 where it is empty."""
    bits = BITS[x.dtype]
    peaks = [torch.zeros((), dtype=bits.dtype, device=x.device)]
    for rows, columns in spans(x.shape[0], x.shape[1], x.device):
        part = x[rows, columns].view(bits.dtype)
        magnitudes = scratch("bits", tuple(part.shape), part, bits.dtype)
        peak = torch.bitwise_and(part, bits.magnitude, out=magnitudes).amax()
        if not keep_nan and int(peak) > bits.infinity:
            peak = magnitudes.masked_fill_(magnitudes > bits.infinity, 0).amax()
        peaks.append(peak)
    return torch.stack(peaks).amax(0, keepdim=True).view(x.dtype).float()


def scale_from_amax(
    amax: torch.Tensor,
    maximum: float,
    *,
    power_of_two: bool = False,
    epsilon: float = 0.0,
    if_infinite: float = FP32_MAXIMUM,
) -> torch.Tensor:
    """What to multiply by so that `amax` becomes `maximum`.

    `compute_scale_from_amax` of the kernels.

    Args:
        amax: fp32.
        maximum: of the element.
        power_of_two: round the scale down to one.
        epsilon: least amax that is believed.
        if_infinite: the scale where the quotient overflows.

    Returns:
        fp32; 1 where the amax is 0 or not finite.
    """
    amax = amax.clamp(min=epsilon)
    scale = torch.full_like(amax, maximum).div_(amax)
    usable = amax.isfinite() & (amax > 0)
    scale.masked_fill_(scale.isinf(), if_infinite)
    if power_of_two:
        scale.view(torch.int32).bitwise_and_(_EXPONENT_BITS)
    return scale.masked_fill_(~usable, 1.0)


def e8m0_ceil(amax: torch.Tensor, element: Element) -> tuple[torch.Tensor, torch.Tensor]:
    """The least e8m0 scale under which `amax` does not saturate: Transformer Engine's.

    Multiplying by the rounded reciprocal of 448 or 57344 equals dividing, for every fp32 amax.

    Returns:
        uint8 codes, and 2**(127 - code) in fp32, what to multiply by.
    """
    # Up to 2**-127, code 0 is enough, but a mantissa that is not 0 would carry below.
    quotient = functional.threshold(amax * element.reciprocal, 2.0**-127, 0.0)
    codes = quotient.view(torch.int32).add_(0x7FFFFF).bitwise_right_shift_(23).clamp_(max=254)
    inverse = (254 - codes).bitwise_left_shift_(23).clamp_(min=1 << 22)
    return codes.to(torch.uint8), inverse.view(torch.float32)


def e8m0_floor(amax: torch.Tensor, element: Element) -> tuple[torch.Tensor, torch.Tensor]:
    """The OCP document's scale, as torchao computes it: the exponent of `amax` less the element's.

    Elements saturate where amax / 2**exponent is beyond the element's largest mantissa. NaN gives
    code 255. torchao divides by no less than 2**-126, though code 0 is read back as 2**-127.

    Returns:
        uint8 codes, and what to multiply by, fp32.
    """
    exponents = amax.view(torch.int32) >> 23
    codes = (exponents - element.exponent).clamp_(min=0).masked_fill_(amax.isnan(), 255)
    inverse = (254 - codes.clamp(min=1)).clamp_(min=0).bitwise_left_shift_(23)
    return codes.to(torch.uint8), inverse.view(torch.float32)


BlockScaling = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""From fp32 amaxes of blocks to uint8 codes of their scales, and what to multiply by, fp32."""


def nvfp4_scaling(tensor_amax: torch.Tensor) -> BlockScaling:
    """The e4m3 scales of NVFP4 blocks under the scale of their tensor.

    A block whose code is 0 is multiplied by the largest finite number.

    Args:
        tensor_amax: fp32 [1].
    """
    tensor_scale = torch.full_like(tensor_amax, NVFP4_RANGE).div_(tensor_amax)
    tensor_scale.clamp_(max=FP32_MAXIMUM)
    tensor_scale.masked_fill_((tensor_amax == 0) | (tensor_scale == 0), 1.0)
    encoding = tensor_scale * torch.full_like(tensor_amax, 6.0).reciprocal_()
    decoding = tensor_scale.reciprocal()

    def scaling(amax: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        codes = torch.empty(amax.shape, dtype=torch.uint8, device=amax.device)
        scale = amax * encoding
        E4M3.cast_(scale, codes)
        multiplier = E4M3.decode(codes, scale).mul_(decoding).reciprocal_()
        return codes, multiplier.clamp_(max=FP32_MAXIMUM)

    return scaling


def nvfp4_scaling_torchao(tensor_amax: torch.Tensor) -> BlockScaling:
    """As `nvfp4_scaling`, but as torchao computes it: two divisions, and no scale below 2**-6.

    torchao gets the scale of the tensor from its caller; here it is that of the amax, which a NaN
    makes NaN, as torch's amax does, and with it every scale; for a tensor of zeros it is 1. Below
    an amax of 5e-34 what to multiply by overflows.

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
