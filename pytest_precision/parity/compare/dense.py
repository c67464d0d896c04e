"""Compute the error statistics of tensors of which most elements differ, chunk by chunk.

The figures are those of `Accumulator.add`, which takes every chunk that needs care (a NaN, an
infinity, a dtype that is not supported here) and every chunk in which few elements differ. What is
left is a fixed number of vector operations in numpy on a chunk that stays in the core's cache. One
thread does them: threads that synchronise after every operation gain little on an idle machine, and
cost a time slice per operation where other processes want the cores too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from pytest_precision.parity.compare.bit_patterns import (
    IEEE,
    SIGNED_FLOATS,
    Bits,
    Working,
    differ,
    widened,
)
from pytest_precision.parity.compare.criterion import Measure
from pytest_precision.parity.compare.statistics import Accumulator, excess

DENSE_ELEMENTS = 2**15
"""Elements per chunk. With fewer, the calls cost more than the work; more do not fit the cache."""

BLAS = 2**13
"""Elements per dot product. For somewhat more of them OpenBLAS starts threads."""

FLOAT_LIMITS = {np.dtype(dtype): np.finfo(dtype) for dtype in (np.float32, np.float64)}

SPARSE = 16
"""A chunk is sparse if at most one of so many elements differs."""

DOUBT = 2**-20
"""Share of the figures of a chunk by which a difference in float32 may be off, generously."""


@dataclass
class _Chunk:
    """A chunk of candidate and reference with their differences, before the criterion is applied.

    Attributes:
        start: flat position of the first element.
        c: bit patterns of the candidate, of shape (n,).
        r: bit patterns of the reference, of shape (n,).
        b: values of the reference.
        difference: candidate - reference.
        apart: distances in representable values, with either sign where `zero` is 0.
        zero: the integer in `apart` that stands for no distance.
        max_ulp: the largest distance.
    """

    start: int
    c: Bits
    r: Bits
    b: Working
    difference: Working
    apart: Bits
    zero: int
    max_ulp: int

    def distances(self) -> Bits:
        """Return how many representable values candidate and reference are apart, per element."""
        distances: Bits = self.apart if self.zero else np.abs(self.apart)
        return distances


class _Bounds(NamedTuple):
    max_abs: float
    max_rel: float


def add(figures: Accumulator, start: int, candidate: Bits, reference: Bits) -> None:
    """Add a span of elements of candidate and reference to the running error statistics.

    Args:
        figures: figures of the elements before them.
        start: flat position of the first of them.
        candidate: bit patterns of the candidate's elements.
        reference: bit patterns of the reference's elements.
    """
    # Infinities, NaN and zero references are what this is for, so numpy need not warn of them.
    with np.errstate(all="ignore"):
        for begin in range(0, len(candidate), DENSE_ELEMENTS):
            chunk = slice(begin, begin + DENSE_ELEMENTS)
            _add_chunk(figures, start + begin, candidate[chunk], reference[chunk])


def add_equal(figures: Accumulator, reference: Bits) -> None:
    """Add elements that are equal in both tensors: only the reference's L2 norm changes."""
    with np.errstate(all="ignore"):
        for begin in range(0, len(reference), DENSE_ELEMENTS):
            _add_reference(figures, reference[begin : begin + DENSE_ELEMENTS])


def _add_reference(figures: Accumulator, r: Bits) -> None:
    b = widened(r, figures.dtype)
    figures.reference_norm = math.hypot(figures.reference_norm, finite_norm(b))


def _add_chunk(figures: Accumulator, start: int, c: Bits, r: Bits) -> None:
    if figures.dtype in SIGNED_FLOATS and _add_densely(figures, start, c, r):
        return
    _add_reference(figures, r)
    at = np.flatnonzero(differ(c, r))
    if len(at):
        figures.add(c[at], r[at], start + at)


def _add_densely(figures: Accumulator, start: int, c: Bits, r: Bits) -> bool:
    """Add a chunk to the statistics by whole-array operations; return False if it was not added.

    `figures` is then unchanged: few elements differ, or some differences are not finite.

    Args:
        figures: figures of the chunks before this one.
        start: flat position of the chunk's first element.
        c: bit patterns of the candidate, of shape (n,).
        r: bit patterns of the reference, of shape (n,).
    """
    apart = c - r
    count = int(np.count_nonzero(apart))
    if count * SPARSE <= len(c):
        return False
    b = widened(r, figures.dtype)
    difference = widened(c, figures.dtype) - b
    steps = max(apart.max().item(), -apart.min().item())
    plain_bounds = _plain_bounds(steps, r, figures.dtype)
    max_abs = 0.0
    if plain_bounds is None or plain_bounds.max_abs > figures.max_abs:
        max_abs = max(difference.max().item(), -difference.min().item())
    bound = _bound(figures, b)
    largest_bound = 0.0 if bound is None else bound.max().item()
    if not max_abs + largest_bound < FLOAT_LIMITS[b.dtype].max:
        return False
    figures.mismatched += count
    figures.max_abs = max(figures.max_abs, max_abs)
    figures.norm = math.hypot(figures.norm, finite_norm(difference))
    figures.reference_norm = math.hypot(figures.reference_norm, finite_norm(b))
    if plain_bounds is None or plain_bounds.max_rel > figures.max_rel:
        figures.max_rel = max(figures.max_rel, _max_rel(difference, b))
    zero = 0
    if plain_bounds is None:
        zero = _measure_across_zero(c, r, apart)
        steps = apart.max().item() - zero
    figures.max_ulp = max(figures.max_ulp or 0, steps)
    chunk = _Chunk(start, c, r, b, difference, apart, zero, steps)
    if bound is None:
        _judge(figures, chunk, count)
    else:
        _judge_values(figures, chunk, bound, largest_bound)
    return True


def _plain_bounds(steps: int, r: Bits, dtype: torch.dtype) -> _Bounds | None:
    """Return upper limits of a chunk's errors; None if values are subnormal, infinite or far apart.

    Plain means that all references are normal numbers, and that no two patterns are an octave
    apart or as far as an infinity. Then no sign changes, since the subnormal numbers lie between,
    an octave of either sign. And `steps` change a number by at most their share of an octave: a
    power of two that grows changes by just that, any other number by less.

    Args:
        steps: largest |c - r| of bit patterns.
        r: bit patterns of the reference, of shape (n,).
        dtype: whose patterns they are.
    """
    mantissa_bits = SIGNED_FLOATS[dtype]
    exponent_bits = 8 * r.itemsize - 1 - mantissa_bits
    octave = 2**mantissa_bits
    if dtype not in IEEE or steps >= octave:
        return None
    mask = 2 ** (8 * r.itemsize - 1) - 1
    sizes = r & mask
    exponent = (sizes.max().item() + steps) // octave
    if sizes.min() < octave or exponent >= 2**exponent_bits - 1:
        return None
    unit = exponent - (2 ** (exponent_bits - 1) - 1) - mantissa_bits
    return _Bounds(math.ldexp(steps, unit), steps / octave)


def _max_rel(difference: Working, b: Working) -> float:
    ratio = difference / b
    largest = max(ratio.max().item(), -ratio.min().item())
    if math.isnan(largest):  # 0 / 0
        largest = max(np.fmax.reduce(ratio).item(), -np.fmin.reduce(ratio).item())
    if math.isinf(largest):  # a zero reference, or a ratio that float32 does not hold
        at = np.isinf(ratio)
        exact = difference[at].astype(np.float64) / b[at].astype(np.float64)
        largest = np.abs(exact).max().item()
    return float(largest)


def _bound(figures: Accumulator, b: Working) -> Working | None:
    """Return the difference allowed at each reference value `b`; None if in ulp or bytes."""
    if figures.measure is not Measure.VALUE:
        return None
    return np.broadcast_to(figures.criterion.bound(np.abs(b)), b.shape)


def _measure_across_zero(c: Bits, r: Bits, apart: Bits) -> int:
    """Turn differences of bit patterns into ulp distances in place, also between opposite signs.

    Args:
        c: bit patterns of the candidate, of shape (n,).
        r: bit patterns of the reference, of shape (n,).
        apart: `c - r`, which becomes the distance in representable values.

    Returns:
        The integer in `apart` that stands for no distance.
    """
    np.abs(apart, out=apart)
    changed = c ^ r
    if changed.min() >= 0:
        return 0
    # Where the sign changes, the distance is the sum of the magnitudes, which takes all bits of an
    # unsigned integer. One of the two patterns has its sign bit set, so that their sum as signed
    # integers is that distance counted from the smallest integer. The others are made to count
    # from there too, and a mask of the sign changes selects.
    zero = int(np.iinfo(c.dtype).min)
    across = c + r
    np.add(apart, zero, out=apart)
    np.right_shift(changed, 8 * c.itemsize - 1, out=changed)
    across ^= apart
    across &= changed
    apart ^= across
    return zero


def _judge(figures: Accumulator, chunk: _Chunk, count: int) -> None:
    """Count a chunk's elements that exceed a bound in ulp or bytes, and remember the worst one."""
    start = chunk.start
    c = chunk.c
    r = chunk.r
    if figures.measure is Measure.BYTES:
        figures.count_beyond(count, lambda: start + int(differ(c, r).argmax()))
    elif chunk.max_ulp > (steps := int(figures.criterion.bound(chunk.b))):
        beyond = chunk.distances() > steps + chunk.zero
        figures.count_beyond(int(np.count_nonzero(beyond)), lambda: start + int(beyond.argmax()))
    # Where all that differs is the sign of zeros, the largest distance is that of equals too.
    figures.keep_worst(
        (False, chunk.max_ulp),
        lambda: start + int((chunk.distances() if chunk.max_ulp else differ(c, r)).argmax()),
    )


def _judge_values(
    figures: Accumulator, chunk: _Chunk, bound: Working, largest_bound: float
) -> None:
    """Count elements whose difference exceeds `bound`; recompute those close to it in float64.

    `chunk.difference` is overwritten.
    """
    start = chunk.start
    c = chunk.c
    r = chunk.r
    doubt = DOUBT * (2 * figures.max_abs + largest_bound) + FLOAT_LIMITS[chunk.b.dtype].tiny
    over = np.abs(chunk.difference, out=chunk.difference)
    over -= bound
    at = int(over.argmax())
    if c[at] == r[at]:  # an equal element is not the worst, however small its bound
        np.copyto(over, -math.inf, where=np.equal(c, r))
        at = int(over.argmax())
    top = over[at].item()
    if top >= -doubt:
        beyond = over > doubt
        unsure = np.flatnonzero((over >= -doubt) & ~beyond & differ(c, r))
        beyond[unsure] = excess(c[unsure], r[unsure], figures.dtype, figures.criterion) > 0
        figures.count_beyond(int(np.count_nonzero(beyond)), lambda: start + int(beyond.argmax()))
    figures.keep_worst((False, top), lambda: start + at)


def finite_norm(values: Working) -> float:
    """Return the L2 norm of the finite elements of an array."""
    squares = 0.0
    for begin in range(0, len(values), BLAS):
        part = values[begin : begin + BLAS]
        squares += float(part.dot(part))
    # Between these bounds no square overflowed, and those that vanished did not matter.
    if math.sqrt(FLOAT_LIMITS[values.dtype].tiny) <= squares < math.inf:
        return math.sqrt(squares)
    finite = np.where(np.isfinite(values), values, 0)
    largest = float(np.abs(finite).max())
    return largest * math.sqrt(np.square(finite / largest).sum()) if largest else 0.0
