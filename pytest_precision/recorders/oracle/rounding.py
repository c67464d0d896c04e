"""Rounding: a bound on the rounding error of a stored result, from the dtype that it has.

Author: the standard model of floating-point arithmetic (Higham, Accuracy and Stability of Numerical
Algorithms, section 2.2): every operation returns the exact result times `1 + d` with `|d| <= u`,
the unit roundoff of the dtype that the result is stored in, plus half a subnormal where it
underflows. Optimizers that work in place round each intermediate result to the dtype of their
state, so an update of n operations is off by n times u of the sum of the magnitudes of its terms.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

ROUNDINGS_OF_UPDATE = 4
"""Roundings of one moment, or of one weight, in an update: two products, their sum and a cast."""

FLOAT32 = 2.0**-24
"""Unit roundoff of fp32."""

_FINEST = 2.0**-48
"""What the oracle's own fp64 arithmetic is trusted to."""

CODING = 3
"""Roundings of coding by a scale: its reciprocal, the product with it, the product of decoding."""

_SCALED = {torch.uint8: (2.0**-3, 2.0**-9), torch.float16: (2.0**-10, 2.0**-24)}
"""Dtype of state with a scale to the distance of neighbours, relative and of subnormals; a uint8 is
e4m3."""


class Rounding(NamedTuple):
    """A bound on the rounding error of one stored tensor in one update.

    Attributes:
        share: of the sum of the magnitudes of the terms.
        least: in addition, where the result underflows.
        unit: unit roundoff of the arithmetic.
    """

    share: float
    least: float
    unit: float

    @classmethod
    def of(cls, dtype: torch.dtype, scale: Tensor | None = None) -> Rounding:
        """Return the error bound of a tensor stored in `dtype`, with or without a scale.

        What has a scale is computed in fp32, coded, and stored once. Nothing says that this one
        rounding is to nearest: one that truncates, or rounds at random, is off by up to the
        distance of two neighbours, twice the unit roundoff.
        """
        if scale is not None:
            distance, subnormal = _SCALED[dtype]
            share = distance + (ROUNDINGS_OF_UPDATE + CODING) * FLOAT32
            return cls(share, float(scale) * subnormal, FLOAT32)
        return _unscaled(dtype)

    def twice(self) -> Rounding:
        """Return the error bound for a result that is rounded twice in a row."""
        return Rounding(2 * self.share, 2 * self.least, self.unit)

    def __call__(self, size: Tensor) -> Tensor:
        """Return the error bound of a sum whose terms' magnitudes add up to `size`."""
        return size.mul(self.share).add_(self.least)


@cache
def _unscaled(dtype: torch.dtype) -> Rounding:
    own = torch.finfo(dtype).eps / 2 if dtype.is_floating_point else FLOAT32  # of integer codes
    unit = max(own, _FINEST)
    # A GPU may flush subnormals of the exponent range of fp32 to zero.
    underflow = 2.0**-24 if dtype is torch.float16 else 2.0**-126
    return Rounding(ROUNDINGS_OF_UPDATE * unit, underflow, unit)


NO_ROUNDING = Rounding(0.0, 0.0, 0.0)
"""What is not rounded at all."""
