"""Encode fp32 optimizer state to fewer bits with a scale, and decode it.

fp32 and bf16 are stored as they are. fp16 and fp8 (bytes of e4m3 in a uint8 tensor) are stored with
one fp32 scale per tensor: `value = stored * scale`. The arithmetic is that of Transformer Engine's
`FusedAdam`, including its NaN: an all-zero tensor has the scale 0, so fp8 stores 0 * (1 / 0). The
moments of an expert that got no token in the first step are therefore NaN from then on, and its
weights from the second step on. fp16 stores zeros in that case.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_precision.formats.elements import E4M3

RANGES = {torch.float16: torch.finfo(torch.float16).max / 2, torch.uint8: E4M3.maximum}
"""Dtype that is stored with a scale to the stored magnitude of a tensor's largest value."""

NAN_BYTE = 0x7F
"""The byte of NaN: e4m3 has two NaNs, and a GPU's conversion writes this one for either sign."""


def scale_name(name: str) -> str:
    """Return the name under which the scale of a stored state, such as `exp_avg`, is kept."""
    return f"{name}_scale"


def decode_scaled(stored_tensor: Tensor, scale: Tensor | None) -> Tensor:
    """Decode stored optimizer state to fp32 values.

    fp32 state is returned itself, so that updates in place reach it.
    """
    if scale is None:
        return stored_tensor.float()
    if stored_tensor.dtype == torch.uint8:
        values = torch.empty_like(stored_tensor, dtype=torch.float32)
        return E4M3.decode(stored_tensor, values).mul_(scale)
    return stored_tensor.float().mul_(scale)


def encode_(stored_tensor: Tensor, scale: Tensor | None, values: Tensor) -> None:
    """Encode fp32 `values` into `stored_tensor`, and their scale into `scale`.

    `values` may be overwritten.
    """
    if scale is None or not values.numel():  # an empty tensor has no largest value
        if stored_tensor is not values:
            stored_tensor.copy_(values)
        return
    lowest, highest = torch.aminmax(values)
    absmax = torch.maximum(-lowest, highest)
    # Divide by a tensor: on some devices, torch divides by a number through its reciprocal.
    torch.div(absmax, torch.full_like(absmax, RANGES[stored_tensor.dtype]), out=scale)
    if stored_tensor.dtype == torch.uint8:
        _encode_fp8_(stored_tensor, scale, values)
    else:
        reciprocal = torch.where(scale > 0, scale.reciprocal(), 0.0)
        stored_tensor.copy_(values.mul_(reciprocal))


def _encode_fp8_(stored_tensor: Tensor, scale: Tensor, values: Tensor) -> None:
    # Values are multiplied by the rounded reciprocal of the scale. The stored scale is the rounded
    # reciprocal of that factor, so it can differ from the scale computed above.
    quantizer_scale = scale.reciprocal()
    torch.reciprocal(quantizer_scale, out=scale)
    E4M3.cast_(values.mul_(quantizer_scale), stored_tensor)
    stored_tensor.masked_fill_(values.isnan(), NAN_BYTE)
