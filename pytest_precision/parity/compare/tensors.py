"""Compare two tensors under a criterion: bytes first, statistics where the bytes differ."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pytest_precision.errors import expected_but_got
from pytest_precision.parity.compare.bit_patterns import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    LANES,
    bits,
    is_plain,
    spans,
)
from pytest_precision.parity.compare.bounds import Bitwise
from pytest_precision.parity.compare.criterion import Criterion, Elementwise
from pytest_precision.parity.compare.statistics import Accumulator, NotFinite, Scalar, Statistics
from pytest_precision.trace.digests import memcmp

COMPARABLE = (*FLOATS, *INTEGERS, *COMPLEX, torch.bool)
"""Dtypes with one value per element, which torch computes; of all others, bits are compared."""

THREAD_BYTES = 2**23
"""Bytes of each side that are worth a thread."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How two tensors violate their comparison criterion: by shape, dtype or values.

    Attributes:
        reason: `shape`, `dtype` or `values`.
        statistics: how far apart the values are; None where shapes or dtypes differ.
        allowed: what the criterion allows at the worst element, with its unit; empty where no
            distance is allowed, or where the criterion has one bound for the whole tensor.
    """

    reason: str
    statistics: Statistics | None = None
    allowed: str = ""


def compare(candidate: Tensor, reference: Tensor, criterion: Criterion) -> Difference | None:
    """Return how two tensors violate a comparison criterion, or None if they do not.

    Tensors may have any strides and be on any device; they are not written to.

    Args:
        candidate: the tensor under test.
        reference: the tensor that it must agree with, of the same shape.
        criterion: as the functions of `calls.CALLS` make it; of dtypes whose values torch does not
            compute, such as packed ones, every bit counts.
    """
    if candidate.shape != reference.shape:
        return Difference("shape")
    assert isinstance(criterion, Elementwise)  # what is left out is not compared
    if candidate.dtype is reference.dtype and candidate.dtype not in COMPARABLE:
        return compare(*with_values(candidate, reference), Bitwise())
    dtype = common_dtype(candidate.dtype, reference.dtype, check_dtype=criterion.check_dtype)
    if dtype is None:
        return Difference("dtype")
    figures = _measure(candidate, reference, criterion, dtype)
    if not figures.beyond:
        return None
    pair_statistics = _statistics(figures, candidate, reference)
    if criterion.allows(pair_statistics):
        return None
    return Difference("values", pair_statistics, figures.allowed(pair_statistics.reference_worst))


def statistics(
    candidate: Tensor, reference: Tensor, criterion: Criterion | None = None
) -> Statistics:
    """Return the error statistics of `candidate` against `reference`, whatever the criterion.

    Args:
        candidate: any tensor.
        reference: a tensor of the same shape.
        criterion: decides what counts as beyond and as worst; None is bitwise.

    Raises:
        ValueError: for tensors whose values cannot be compared: `compare` returns how they differ.
    """
    criterion = Bitwise() if criterion is None else criterion
    assert isinstance(criterion, Elementwise)
    candidate, reference = with_values(candidate, reference)
    dtype = common_dtype(candidate.dtype, reference.dtype, check_dtype=criterion.check_dtype)
    if candidate.shape != reference.shape or dtype is None:
        raise ValueError(
            expected_but_got(
                f"a candidate like the reference, {tuple(reference.shape)} of {reference.dtype},",
                f"candidate={tuple(candidate.shape)} of {candidate.dtype}",
                "compare() says what is different about them",
            )
        )
    return _statistics(_measure(candidate, reference, criterion, dtype), candidate, reference)


def same_bytes(candidate: Tensor, reference: Tensor) -> bool:
    """Return whether two tensors are equal in shape, dtype and every byte."""
    return (
        candidate.shape == reference.shape
        and candidate.dtype is reference.dtype
        and (
            _same_at_once(candidate, reference, reference.dtype)
            or all(_same(c, r) for _, c, r in spans(candidate, reference, reference.dtype))
        )
    )


def with_values(candidate: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Return two tensors as they are; as integers of their bits if torch computes no values."""
    if candidate.dtype is not reference.dtype or candidate.dtype in COMPARABLE:
        return candidate, reference
    lanes = LANES[candidate.itemsize]
    return candidate.view(lanes), reference.view(lanes)


def common_dtype(
    candidate_dtype: torch.dtype, reference_dtype: torch.dtype, *, check_dtype: bool
) -> torch.dtype | None:
    """Return the dtype to which two dtypes are cast for a comparison; None if not comparable.

    Args:
        candidate_dtype: one dtype.
        reference_dtype: the other one.
        check_dtype: see `Elementwise`.
    """
    if candidate_dtype is reference_dtype:
        return candidate_dtype
    if check_dtype or not (candidate_dtype in FLOATS and reference_dtype in FLOATS):
        return None
    return torch.float64 if torch.float64 in (candidate_dtype, reference_dtype) else torch.float32


def _measure(
    candidate: Tensor, reference: Tensor, criterion: Elementwise, dtype: torch.dtype
) -> Accumulator:
    figures = Accumulator(criterion, dtype)
    if _same_at_once(candidate, reference, dtype):
        return figures
    # Only here, since nearly all tensors that are compared have the same bytes.
    from pytest_precision.parity.compare import dense

    equal = set()
    for start, c, r in spans(candidate, reference, dtype):
        if _same(c, r):
            equal.add(start)
        else:
            dense.add(figures, start, bits(c), bits(r))
    if figures.norm:
        for start, _, r in spans(reference, reference, dtype):
            if start in equal:
                dense.add_equal(figures, bits(r))
    return figures


def _same_at_once(candidate: Tensor, reference: Tensor, dtype: torch.dtype) -> bool:
    """Return True if large tensors are equal, using all threads; False if not known yet."""
    sides = (candidate, reference)
    threads = min(torch.get_num_threads(), reference.nbytes // THREAD_BYTES)
    if threads < 2 or not all(is_plain(side, dtype) for side in sides):
        return False
    share = reference.nbytes // threads
    starts = range(0, reference.nbytes, share)
    # A call of memcmp releases the GIL. Torch must not be called in more than one thread:
    # from then on each of its own parallel loops is slower.
    with ThreadPoolExecutor(threads) as pool:
        return not any(
            pool.map(
                memcmp,
                (candidate.data_ptr() + start for start in starts),
                (reference.data_ptr() + start for start in starts),
                (min(share, reference.nbytes - start) for start in starts),
            )
        )


def _same(candidate: Tensor, reference: Tensor) -> bool:
    size = candidate.numel() * candidate.itemsize
    return not memcmp(candidate.data_ptr(), reference.data_ptr(), size)


def _statistics(figures: Accumulator, candidate: Tensor, reference: Tensor) -> Statistics:
    rel_l2 = 0.0
    if figures.norm:
        rel_l2 = figures.norm / figures.reference_norm if figures.reference_norm else math.inf
    first, candidate_first, reference_first = _element(figures.first, candidate, reference)
    worst, candidate_worst, reference_worst = _element(figures.worst, candidate, reference)
    finite = figures.norm > 0 and not (figures.nan_mismatched or figures.inf_mismatched)
    if finite or figures.dtype not in (*FLOATS, *COMPLEX):
        candidate_not_finite = reference_not_finite = NotFinite()
    else:
        candidate_not_finite, reference_not_finite = _not_finite(
            candidate, reference, figures.dtype
        )
    return Statistics(
        numel=reference.numel(),
        mismatched=figures.mismatched,
        beyond=figures.beyond,
        max_abs=figures.max_abs,
        max_rel=figures.max_rel,
        max_ulp=figures.max_ulp,
        rel_l2=rel_l2,
        nan_mismatched=figures.nan_mismatched,
        inf_mismatched=figures.inf_mismatched,
        first=first,
        candidate_first=candidate_first,
        reference_first=reference_first,
        worst=worst,
        candidate_worst=candidate_worst,
        reference_worst=reference_worst,
        candidate_not_finite=candidate_not_finite,
        reference_not_finite=reference_not_finite,
    )


def _not_finite(
    candidate: Tensor, reference: Tensor, dtype: torch.dtype
) -> tuple[NotFinite, NotFinite]:
    counts = [[0, 0], [0, 0]]
    for _, *sides in spans(candidate, reference, dtype):
        for count, span in zip(counts, sides, strict=True):
            wide_tensor = span.float() if span.itemsize < 4 else span
            count[0] += int(wide_tensor.isnan().count_nonzero())
            count[1] += int(wide_tensor.isinf().count_nonzero())
    return NotFinite(*counts[0]), NotFinite(*counts[1])


def _element(
    position: int | None, candidate: Tensor, reference: Tensor
) -> tuple[tuple[int, ...] | None, Scalar | None, Scalar | None]:
    if position is None:
        return None, None, None
    index = tuple(int(i) for i in np.unravel_index(position, tuple(reference.shape)))
    return index, candidate[index].item(), reference[index].item()
