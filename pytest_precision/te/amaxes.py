"""Delayed scaling: from recorded amaxes to the scales of the next step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pytest_precision.formats.scaling import FP32_MAXIMUM
from pytest_precision.formats.transformer_engine.storages import ELEMENTS


def fused_amax_and_scale_update_after_reduction(
    amax_reduction_buffer: Tensor,
    amax_histories: Sequence[Tensor],
    scales: Sequence[Tensor],
    amax_compute_algo: str,
    fp8_dtype: int,
    margin: float,
) -> None:
    """Roll each amax history by one row, and compute the next scales from all-reduced amaxes.

    Where the reduced amax is 0, row 0 of the history counts instead. If both are 0, the tensor was
    not quantized since the last update, and keeps its history and its scale.

    Args:
        amax_reduction_buffer: the amaxes of all histories, one after the other.
        amax_histories: [length, tensors]; row 0 is being recorded.
        scales: [tensors], the factors of the next casts.
        amax_compute_algo: "max" of the history, or "most_recent".
        fp8_dtype: element of the casts.
        margin: the scale is smaller by a factor of 2**margin.
    """
    reach = ELEMENTS[int(fp8_dtype)].maximum * 2.0**-margin
    widths = [history.shape[1] for history in amax_histories]
    reduced = torch.split(amax_reduction_buffer[: sum(widths)], widths)
    for length in sorted({len(history) for history in amax_histories}):
        # Of many modules at once: their histories are small, and each operation takes as long.
        indices = [n for n, history in enumerate(amax_histories) if len(history) == length]
        history = torch.cat([amax_histories[n] for n in indices], 1)
        scale = torch.cat([scales[n] for n in indices])
        newest = torch.cat([reduced[n] for n in indices])
        newest = torch.where(newest != 0, newest, history[0])
        was_quantized = newest != 0
        rolled = history.roll(-1, 0)
        rolled[-1] = newest
        amax = rolled.amax(0) if amax_compute_algo == "max" else newest
        rolled[0] = 0
        rolled = torch.where(was_quantized, rolled, history)
        new_scale = torch.full_like(amax, reach).div_(amax).clamp_(max=FP32_MAXIMUM)
        usable = was_quantized & (amax > 0) & amax.isfinite()
        new_scale = torch.where(usable, new_scale, scale)
        part_widths = [widths[n] for n in indices]
        for n, part, factor in zip(
            indices,
            torch.split(rolled, part_widths, 1),
            torch.split(new_scale, part_widths),
            strict=True,
        ):
            amax_histories[n].copy_(part)
            scales[n].copy_(factor)
