"""Optimizer state stored in fewer bits than the fp32 that it is computed in.

fp32 and bf16 are stored as they are. fp16 and fp8 (bytes of e4m3 in a uint8 tensor) are stored with
one fp32 scale a tensor: `value = stored * scale`. The arithmetic is that of Transformer Engine's
`FusedAdam`, NaN included: an all-zero tensor has the scale 0, so that fp8 stores 0 * (1 / 0). The
moments of an expert that got no token in the first step are NaN from then on, and its weights from
the second step. fp16 stores zeros there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_precision.formats.elements import E4M3

RANGES = {torch.float16: torch.finfo(torch.float16).max / 2, torch.uint8: E4M3.maximum}
"""The stored magnitude of a tensor's largest value, for the dtypes that have a scale."""

NAN_BYTE = 0x7F
"""e4m3 has two NaNs; a GPU's conversion writes this one whatever the sign was."""


def scale_name(name: str) -> str:
    """Under which name the scale of the state `name` stands beside it."""
    return f"{name}_scale"


def decode(stored: Tensor, scale: Tensor | None) -> Tensor:
    """The fp32 values; `stored` itself if it is fp32, so that updating them updates the state."""
    if scale is None:
        return stored.float()
    if stored.dtype == torch.uint8:
        values = torch.empty_like(stored, dtype=torch.float32)
        return E4M3.decode(stored, values).mul_(scale)
    return stored.float().mul_(scale)


def encode_(stored: Tensor, scale: Tensor | None, values: Tensor) -> None:
    """Write fp32 `values`, which may be overwritten, to `stored` and their scale to `scale`."""
    if scale is None or not values.numel():  # nothing has no largest value
        if stored is not values:
            stored.copy_(values)
        return
    lowest, highest = torch.aminmax(values)
    absmax = torch.maximum(-lowest, highest)
    # Divided by a tensor: torch multiplies by the reciprocal of a number on some devices.
    torch.div(absmax, torch.full_like(absmax, RANGES[stored.dtype]), out=scale)
    if stored.dtype == torch.uint8:
        _encode_fp8_(stored, scale, values)
    else:
        reciprocal = torch.where(scale > 0, scale.reciprocal(), 0.0)
        stored.copy_(values.mul_(reciprocal))


def _encode_fp8_(stored: Tensor, scale: Tensor, values: Tensor) -> None:
    # What reading multiplies with is the reciprocal of what writing multiplied with, which is the
    # reciprocal of the scale: two roundings away from it.
    quantizer_scale = scale.reciprocal()
    torch.reciprocal(quantizer_scale, out=scale)
    E4M3.cast_(values.mul_(quantizer_scale), stored)
    stored.masked_fill_(values.isnan(), NAN_BYTE)
