"""Compute the error statistics of two tensors exactly, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from pytest_precision.parity.compare.bit_patterns import (
    FLOATS,
    Bits,
    NumpyValues,
    ulps,
    values_of_bits,
)
from pytest_precision.parity.compare.criterion import Elementwise, Measure

Scalar = int | float | complex | bool


UINT64_MAX = 2**64 - 1

TINY = np.finfo(np.float64).tiny


class NotFinite(NamedTuple):
    """The number of NaN and infinite elements of a tensor."""

    nan: int = 0
    infinite: int = 0


@dataclass(frozen=True, slots=True)
class Statistics:
    """The error of a candidate tensor against its reference: counts, maxima, norms and positions.

    The absolute, relative and L2 figures leave out pairs that are not finite on both sides, which
    have counts of their own. All figures but those of integers carry the rounding error of the
    dtype, or of float32 for narrower ones.

    Attributes:
        numel: number of elements.
        mismatched: number of elements whose bytes differ.
        beyond: number of elements beyond the criterion.
        max_abs: largest |candidate - reference|; an exact int for integers and bools.
        max_rel: largest |candidate - reference| / |reference|; inf where the reference is zero.
        max_ulp: largest distance in representable values between two elements that are not NaN,
            None for dtypes that have no such distance.
        rel_l2: norm of the difference over norm of the reference; inf where the latter is zero.
        nan_mismatched: number of elements that are NaN on one side only.
        inf_mismatched: number of elements without a NaN that are infinite on one side only, or
            infinite with opposite signs.
        first: index of the first element beyond the criterion.
        candidate_first: the candidate's value there.
        reference_first: the reference's value there.
        worst: index of the mismatched element that is furthest off, the first of equals: one
            that is NaN on one side only; else the largest excess over the bound under `close`;
            else the largest distance in representable values, or in absolute value for dtypes
            that have no such distance.
        candidate_worst: the candidate's value there.
        reference_worst: the reference's value there.
        candidate_not_finite: counted where a pair that differs has a NaN or an infinity.
        reference_not_finite: counted at the same places.
    """

    numel: int
    mismatched: int
    beyond: int
    max_abs: float
    max_rel: float
    max_ulp: int | None
    rel_l2: float
    nan_mismatched: int
    inf_mismatched: int
    first: tuple[int, ...] | None
    candidate_first: Scalar | None
    reference_first: Scalar | None
    worst: tuple[int, ...] | None
    candidate_worst: Scalar | None
    reference_worst: Scalar | None
    candidate_not_finite: NotFinite
    reference_not_finite: NotFinite

    @property
    def measured(self) -> bool:
        """Return whether the error is known: `max_abs` > 0, or all unequal elements are finite."""
        return bool(self.max_abs) or not (
            any(self.candidate_not_finite) or any(self.reference_not_finite)
        )


class Accumulator:
    """Running error statistics of two tensors, over the elements that were added so far.

    Attributes:
        criterion: decides which elements count as beyond, and which as worst.
        measure: that of the criterion, or `BYTES` where the dtype does not have it.
        dtype: dtype in which both sides are compared.
        norm: norm of the difference of the finite elements.
        reference_norm: norm of the finite elements of the reference.
        first: flat position; as the other attributes, see `Statistics`.
        worst: flat position.
        severity: of the worst: whether it is a NaN on one side only, and how far off it is in
            the measure that `Statistics.worst` names.
    """

    def __init__(self, criterion: Elementwise, dtype: torch.dtype) -> None:
        self.criterion = criterion
        self.measure = _measure(criterion.measure, dtype)
        self.dtype = dtype
        self.mismatched = self.beyond = 0
        self.nan_mismatched = self.inf_mismatched = 0
        self.max_abs: float = 0
        self.max_rel = 0.0
        self.max_ulp = 0 if dtype in FLOATS else None
        self.norm = self.reference_norm = 0.0
        self.first: int | None = None
        self.worst: int | None = None
        self.severity: tuple[bool, float] = (False, -math.inf)

    def add(self, candidate: Bits, reference: Bits, positions: npt.NDArray[np.intp]) -> None:
        """Add pairs of elements with different bytes to the error statistics.

        Args:
            candidate: bit patterns of shape (n,), or (n, 2) for the 16 bytes of a complex128.
            reference: bit patterns of the same shape.
            positions: of the pairs in the flattened tensors, ascending, of shape (n,).
        """
        c, r = values_of_bits(candidate, self.dtype), values_of_bits(reference, self.dtype)
        c_nan, r_nan = np.isnan(c), np.isnan(r)
        one_nan, no_nan = c_nan != r_nan, ~(c_nan | r_nan)
        finite = np.isfinite(c) & np.isfinite(r)
        infinite = no_nan & ~finite & (c != r)
        distance = _distance(c, r)
        self.mismatched += len(positions)
        self.nan_mismatched += int(np.count_nonzero(one_nan))
        self.inf_mismatched += int(np.count_nonzero(infinite))
        self._add_magnitudes(distance[finite], r[finite])
        beyond = np.ones(len(positions), bool)
        severity: NumpyValues = np.where(finite, distance, distance.dtype.type(0))
        if infinite.any():
            severity[infinite] = np.inf
        if self.max_ulp is not None:
            severity = np.where(no_nan, ulps(candidate, reference, self.dtype), np.uint64(0))
            self.max_ulp = max(self.max_ulp, int(severity.max()))
        if self.measure is Measure.STEPS:
            steps = int(self.criterion.bound(_size(r)))
            beyond = one_nan | (severity > np.uint64(min(steps, UINT64_MAX)))
        elif self.measure is Measure.VALUE:
            over = _excess(c, r, distance, self.criterion)
            severity = np.where(infinite, np.inf, np.where(finite, over, -np.inf))
            beyond = one_nan | (severity > 0)
        self.count_beyond(int(np.count_nonzero(beyond)), lambda: int(positions[beyond.argmax()]))
        if one_nan.any():
            self.keep_worst((True, 0), lambda: int(positions[one_nan.argmax()]))
        else:
            top = int(severity.argmax())
            self.keep_worst((False, severity[top].item()), lambda: int(positions[top]))

    def _add_magnitudes(self, distance: NumpyValues, reference: NumpyValues) -> None:
        largest = distance.max(initial=0).item()
        if not largest:
            return
        self.max_abs = max(self.max_abs, largest)
        relative = distance[distance > 0] / _size(reference[distance > 0])
        self.max_rel = max(self.max_rel, relative.max().item())
        # Scaled by the largest, so that no square overflows or vanishes.
        scaled = distance / largest if math.isfinite(largest) else np.ones(1)
        self.norm = math.hypot(self.norm, largest * math.sqrt(np.square(scaled).sum()))

    def count_beyond(self, count: int, locate: Callable[[], int]) -> None:
        """Count elements beyond the criterion; `locate` returns the first one's position."""
        self.beyond += count
        if count and self.first is None:
            self.first = locate()

    def keep_worst(self, severity: tuple[bool, float], locate: Callable[[], int]) -> None:
        """Remember an element as the worst one, unless an earlier one was as bad."""
        if self.worst is None or severity > self.severity:
            self.severity = severity
            self.worst = locate()

    def allowed(self, reference: Scalar | None) -> str:
        """Return the difference allowed at `reference`, as `2 ulp`; empty for bytes, NaN, inf."""
        if reference is None or self.measure is Measure.BYTES or not math.isfinite(abs(reference)):
            return ""
        with np.errstate(over="ignore"):
            bound = self.criterion.bound(np.array([abs(reference)], np.float64))
        return f"{bound} ulp" if isinstance(bound, int) else f"{bound.item():.3g}"


def excess(c_bits: Bits, r_bits: Bits, dtype: torch.dtype, criterion: Elementwise) -> NumpyValues:
    """Return |difference| minus the bound, per element; positive where the bound is exceeded."""
    c, r = values_of_bits(c_bits, dtype), values_of_bits(r_bits, dtype)
    return _excess(c, r, _distance(c, r), criterion)


def _distance(c: NumpyValues, r: NumpyValues) -> NumpyValues:
    """Return |candidate - reference|: exact in uint64 for integers and bools, else rounded once."""
    if c.dtype.kind not in "iub":
        distance: NumpyValues = np.abs(c - r)
        return distance
    wide = np.uint64 if c.dtype == np.uint64 else np.int64
    c, r = c.astype(wide), r.astype(wide)
    # The distance of two int64 fits uint64, and modulo 2**64 the subtraction is exact.
    return np.maximum(c, r).view(np.uint64) - np.minimum(c, r).view(np.uint64)


def _size(values: NumpyValues) -> npt.NDArray[np.float64]:
    """Return |values| in float64, which holds the magnitude of the smallest int64."""
    size: npt.NDArray[np.float64] = np.abs(values.astype(np.result_type(values, np.float64)))
    return size


def _excess(
    c: NumpyValues, r: NumpyValues, distance: NumpyValues, criterion: Elementwise
) -> npt.NDArray[np.float64]:
    bound = np.broadcast_to(criterion.bound(_size(r)), r.shape)
    over: npt.NDArray[np.float64] = distance - bound
    if distance.dtype == np.uint64:
        # float64 does not hold every distance of integers, so an integer bound decides.
        limit = np.where(bound < 2.0**64, bound, 0).astype(np.uint64)
        limit[bound >= 2.0**64] = UINT64_MAX
        return np.where(distance > limit, np.maximum(over, TINY), np.minimum(over, 0))
    # Finite values whose distance float64 cannot hold; NaN and infinities are counted elsewhere.
    beyond = ~(np.isfinite(distance) & np.isfinite(bound)) & np.isfinite(c) & np.isfinite(r)
    if beyond.any():
        wide = np.result_type(c, np.longdouble)
        c, r = c[beyond].astype(wide), r[beyond].astype(wide)
        over[beyond] = np.abs(c - r) - criterion.bound(np.abs(r))
    return over


def _measure(measure: Measure, dtype: torch.dtype) -> Measure:
    """Return the measure asked for, or bytes where it has no meaning, such as ulp for integers."""
    if measure is Measure.STEPS and dtype not in FLOATS:
        return Measure.BYTES
    return Measure.BYTES if dtype is torch.bool else measure
