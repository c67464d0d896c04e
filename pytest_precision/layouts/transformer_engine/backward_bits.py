"""The random bits by which Transformer Engine's layers round output gradients stochastically.

They are those of the emulated layers, which depend on layer, step and microbatch alone. A GPU's
kernels draw their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pytest_precision.formats.registry import by_name, recipe
from pytest_precision.formats.transformer_engine import random_bits
from pytest_precision.modules.padding import padded_shape
from pytest_precision.modules.rng import RoundingRng

STOCHASTIC = "nvfp4"
"""The precision whose gradients are rounded stochastically."""


def give_bits(
    layer: Any, rngs: Sequence[RoundingRng], counts: Sequence[int], *, grouped: bool
) -> None:
    """Give a layer the random bits of its next backward, if its recipe rounds stochastically.

    Args:
        layer: a `Linear` or `GroupedLinear` of Transformer Engine, after its forward.
        rngs: one per weight.
        counts: the rows of each weight's input before they were padded.
        grouped: whether one quantizer rounds the gradients of all weights, as it does where these
            are one parameter; there is one per weight otherwise.
    """
    quantizers = layer.quantizers.get("scaling_bwd") or []
    if not quantizers or not getattr(quantizers[0], "stochastic_rounding", False):
        return
    if grouped:
        random_bits.give(quantizers[0], BackwardBits(rngs, counts))
        return
    stride = len(quantizers) // len(rngs)
    for quantizer, rng, count in zip(quantizers[::stride], rngs, counts, strict=True):
        random_bits.give(quantizer, BackwardBits([rng], [count]))


class BackwardBits:
    """Supplies random bits to one quantizer, gradient by gradient, in the order of its calls.

    Args:
        rngs: of the weights whose gradients it rounds in a backward, in order.
        counts: the rows of each of these gradients before they were padded; one without rows is
            not rounded.
    """

    def __init__(self, rngs: Sequence[RoundingRng], counts: Sequence[int]) -> None:
        rng_counts = [(rng, count) for rng, count in zip(rngs, counts, strict=True) if count]
        self._next = cycle(rng_counts)  # a graph that is kept may have a second backward

    def __call__(self, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Return the random bits for the next gradient, of this shape; 0 in padding rows."""
        rng, count = next(self._next)
        rows, columns = padded_shape(by_name(recipe(STOCHASTIC).gradient), (count, shape[1]))
        rowwise, columnwise = rng.bits((rows, columns), torch.device("cpu"))
        more = shape[0] - rows
        return F.pad(rowwise, (0, 0, 0, more)), F.pad(columnwise, (0, more))
