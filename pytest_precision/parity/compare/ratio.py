"""Find whether two tensors differ by a constant factor, or only in one run of elements."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from math import isfinite, lgamma, log, log2, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_precision.parity.words import power_of_two

SAME = 1e-6
"""Relative distance within which six digits are the same."""

ROUNDINGS = 64
"""Unit roundoffs of the products that a least-squares factor may leave, as a share of the norm.

A backward of a scaled loss rounds otherwise than that of the loss itself. Measured on this
package's models: at most 6 units in fp32 (3.2e-7) and 2 in bf16 (6e-3)."""

COARSEST = 2.0**-5
"""Largest such share. A microbatch that is dropped or counts twice, and a mean of means, leave 0.07
to 0.3; what bf16 leaves is below 0.006."""

TELLS = 8
"""How many times as large as what it leaves the effect of a factor must be."""

EXACT = 2.0**-53
"""Unit roundoff of Python's numbers, in which a ratio of integers is computed."""

SIMPLEST = 64
"""Largest product of numerator and denominator of a factor that a single number may show."""


class Fit(NamedTuple):
    """The least-squares factor between two tensors.

    Attributes:
        factor: by which the second is multiplied.
        residual: norm of what remains, as a share of that of the product.
    """

    factor: float
    residual: float

    @classmethod
    def of(cls, ours: Tensor, theirs: Tensor) -> Fit | None:
        """Fit `ours` as factor * `theirs`, fp64 [n], finite; None if one or the factor is 0."""
        scale, largest = float(theirs.abs().max()), float(ours.abs().max())
        if not scale or not largest:
            return None
        a, b = ours / largest, theirs / scale  # so that no square overflows or vanishes
        factor = float(a @ b) / float(b @ b)
        if not factor:
            return None
        rest = float((a - factor * b).norm()) / (abs(factor) * float(b.norm()))
        return cls(factor * largest / scale, rest)

    def explains(self, unit: float) -> bool:
        """Return whether the factor leaves no difference but rounding errors of size `unit`."""
        allowed = min(ROUNDINGS * unit, COARSEST)
        effect = abs(self.factor - 1) / max(abs(self.factor), 1)
        return self.residual <= allowed and effect >= TELLS * max(self.residual, unit)


def constant_ratio(candidate_tensor: Tensor, reference_tensor: Tensor, eps: float) -> float | None:
    """Return the constant factor between two tensors, up to rounding; None if there is none.

    Args:
        candidate_tensor: fp64, shape [n], all finite.
        reference_tensor: fp64, shape [n], all finite.
        eps: of the dtype in which both were stored.
    """
    nonzero = reference_tensor != 0
    if nonzero.sum() < 2 or bool(candidate_tensor[~nonzero].any()):
        return None
    ratios = candidate_tensor[nonzero] / reference_tensor[nonzero]
    middle = float(ratios.median())
    # Each side is a value rounded once, which moves it by eps / 2 at most, and the ratio by eps.
    spread = float((ratios - middle).abs().max())
    constant = middle != 0 and spread <= 2 * eps * abs(middle) and abs(middle - 1) > 2 * eps
    return middle if constant else None


def simple_ratio(ours: float, theirs: float, unit: float) -> float | None:
    """Return the factor between two numbers if it is a simple fraction or the square root of one.

    Two numbers always have a ratio; only one that few numbers are close to says something. A norm
    whose square is counted twice is off by the root.

    Args:
        ours: finite.
        theirs: finite.
        unit: unit roundoff of what computed them.
    """
    allowed = min(ROUNDINGS * max(unit, EXACT), COARSEST)
    if not theirs or not ours or abs(ours / theirs - 1) <= TELLS * allowed:
        return None
    ratio = ours / theirs
    simplest = min(SIMPLEST, 1 / (TELLS * allowed))
    for square in (False, True):
        value = abs(ratio) ** (2 if square else 1)
        if not isfinite(value):
            return None
        near = Fraction(value).limit_denominator(SIMPLEST)
        size = near.numerator * near.denominator
        if 1 < size <= (min(simplest, 8) if square else simplest):
            exact_tensor = sqrt(near) if square else float(near)
            if abs(abs(ratio) / exact_tensor - 1) <= allowed:
                return exact_tensor if ratio > 0 else -exact_tensor
    return None


def words_of(ratio: float, *, exact: bool = True) -> str:
    """Format a factor to 6 digits, or 3 if `exact` is False; extreme powers of two become `2^n`."""
    if not ratio or not isfinite(ratio):  # one of the two is 0 where the other is not
        return f"{ratio:.6g}"
    nearest = 2.0 ** round(log2(abs(ratio)))
    near = abs(abs(ratio) / nearest - 1) < (SAME if exact else COARSEST)
    power = near and power_of_two(nearest)
    digits = 6 if exact else 3
    return f"{'-' * (ratio < 0)}{power}" if power else f"{ratio:.{digits}g}"


def words_unlike_1(ratio: float, *, exact: bool = True) -> str:
    """Format a factor that is not 1 as `words_of` does, or with the digits that tell it from 1."""
    words = words_of(ratio, exact=exact)
    return repr(1 + float(f"{ratio - 1:.2g}")) if words == "1" else words


def unit_of(dtype: torch.dtype) -> float:
    """Return the unit roundoff of a floating dtype."""
    return float(torch.finfo(dtype).eps) / 2


SEGMENTS = 4
"""Parts of a tensor, each with a constant ratio, up to which edges of buffers explain them."""

LEAST_ELEMENTS = 8
"""Fewest elements of such a part, and of a tensor whose form tells something."""

UNLIKELY = 1e-9
"""Chance below which elements that differ are not neighbours by accident, in some tensor and step
of a large suite."""


def edges(candidate_tensor: Tensor, reference_tensor: Tensor, eps: float) -> str:
    """Describe where the ratio of two tensors steps from one constant to another; else empty."""
    if not reference_tensor.all():
        return ""
    ratios = candidate_tensor / reference_tensor
    jumps = (ratios.diff().abs() > 4 * eps * ratios[1:].abs()).nonzero().view(-1) + 1
    if not 0 < len(jumps) < SEGMENTS:
        return ""
    bounds = [0, *jumps.tolist(), len(ratios)]
    parts = [ratios[start:stop] for start, stop in pairwise(bounds)]
    if min(map(len, parts)) < LEAST_ELEMENTS:
        return ""
    first, *others = (words_of(float(part.median())) for part in parts)
    if {first} == {*others}:  # Ratios that read alike differ by rounding alone.
        return ""
    changes = [
        f"{ratio} from element {edge}" for ratio, edge in zip(others, bounds[1:], strict=False)
    ]
    return f"{first} times the reference, {', '.join(changes)}"


def stretch_of(candidate_tensor: Tensor, reference_tensor: Tensor) -> str:
    """Describe the one contiguous range of elements that differ; empty if they form no such range.

    Rounding scatters: as many elements, drawn at random, must rarely form such a range. Zeros
    on both sides do not count as agreement: rows of a table that no token has read have them.
    """
    unequal = candidate_tensor != reference_tensor
    differ = unequal.nonzero().view(-1)
    if not is_stretch(differ, len(candidate_tensor)) or not candidate_tensor[~unequal].any():
        return ""
    return f"different in {place(differ, len(candidate_tensor))} only"


def is_stretch(positions: Tensor, size: int) -> bool:
    """Return whether positions are consecutive, and too many to be so by chance."""
    stretch = int(positions[-1]) + 1 - int(positions[0])
    return len(positions) == stretch and _log_chance(stretch, size) <= log(UNLIKELY)


def place(positions: Tensor, size: int) -> str:
    """Return words on where `positions` lie in a tensor, such as `the first 8 of 64 elements`."""
    start, stop = int(positions[0]), int(positions[-1]) + 1
    if start == 0:
        return f"the first {stop} of {size} elements"
    if stop == size:
        return f"the last {stop - start} of {size} elements"
    return f"elements {start} to {stop - 1} of {size}"


def _log_chance(stretch: int, size: int) -> float:
    """Return the log of the chance that `stretch` elements, picked from `size`, are contiguous."""
    rest = size - stretch
    return log(rest + 1) - (lgamma(size + 1) - lgamma(stretch + 1) - lgamma(rest + 1))
