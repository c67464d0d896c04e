"""Delayed scaling: from recorded amaxes to the scales of the next step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pytest_precision.formats.scaling import FP32_MAXIMUM
from pytest_precision.te.storages import ELEMENTS


def fused_amax_and_scale_update_after_reduction(
    amax_reduction_buffer: Tensor,
    amax_histories: Sequence[Tensor],
    scales: Sequence[Tensor],
    amax_compute_algo: str,
    fp8_dtype: int,
    margin: float,
) -> None:
    """Roll each history by one row and compute the scales, from amaxes that ranks have reduced.

    The reduced amaxes count where they are not 0. A tensor that was not quantized since the last
    update, whose amax is 0, keeps its history and its scale.

    Args:
        amax_reduction_buffer: the amaxes of all histories, one after the other.
        amax_histories: [length, tensors]; row 0 is being recorded.
        scales: [tensors], the factors of the next casts.
        amax_compute_algo: "max" of the history, or "most_recent".
        fp8_dtype: element of the casts.
        margin: the scale is smaller by a factor of 2**margin.
    """
    reach = ELEMENTS[int(fp8_dtype)].maximum * 2.0**-margin
    begin = 0
    for history, scale in zip(amax_histories, scales, strict=True):
        tensors = history.shape[1]
        reduced = amax_reduction_buffer[begin : begin + tensors]
        begin += tensors
        newest = torch.where(reduced != 0, reduced, history[0])
        seen = newest != 0
        rolled = history.roll(-1, 0)
        rolled[-1] = newest
        amax = rolled.amax(0) if amax_compute_algo == "max" else newest
        rolled[0] = 0
        history.copy_(torch.where(seen, rolled, history))
        made = torch.full_like(amax, reach).div_(amax).clamp_(max=FP32_MAXIMUM)
        usable = seen & (amax > 0) & amax.isfinite()
        scale.copy_(torch.where(usable, made, scale))
