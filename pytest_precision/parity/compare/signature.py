"""Recognize the pattern of a difference, such as a constant factor, as a hint to its cause."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pytest_precision.matrix.contract import dtype_name
from pytest_precision.parity.compare.bit_patterns import LANES, has_all, step_at
from pytest_precision.parity.compare.ratio import (
    COARSEST,
    LEAST_ELEMENTS,
    Fit,
    constant_ratio,
    edges,
    simple_ratio,
    stretch_of,
    words_of,
    words_unlike_1,
)

NO_PATTERN = "values"
"""The words for a difference in which nothing stands out."""

NOT_FINITE = ("all NaN", "not finite")

ERRORS = {
    "factor": "one factor between both sides, exactly or up to rounding",
    "loss scale": "a factor that is the loss scale, or one over it",
    "zero": "all zero, where the reference is not",
    "sign of zero": "no value differs, but the sign of a zero does",
    "not finite": "NaN or infinities",
    "rounded": "rounded to a coarser dtype, or on its grid alone",
    "edge": "a factor that changes at an element, as at the edge of a bucket",
    "stretch": "different in one stretch of elements only",
    "transposed": "the values of the transposed tensor",
    "reordered": "the same values in other places",
    "stale": "the value of another step",
    "other tensor": "the value of another tensor, or of the other parameter group",
    "not updated": "as it was before the step, or a part of it is",
    "update": "moved by a multiple of what it should have been",
    "not zeroed": "the difference is the gradient of the step before",
    "per rank": "a factor on each rank, or in each microbatch, of its own",
    "accumulation": "a wrong rule of accumulation, by the gradients of the workload",
    "microbatches": "another number of microbatches",
    "weights": "other weights are updated",
}
"""Kinds of errors that a difference in values may look like; anything else that is wrong is its own
kind: `dtype`, `shape`, `missing`, `extra`, `replicas`, `uncovered`, `pieces`."""

FINE = 2.0**-20
"""Unit roundoff below which two numbers with one factor do not have it by accident."""

COARSER = {
    torch.float64: (torch.float32, torch.bfloat16, torch.float16),
    torch.float32: (torch.bfloat16, torch.float16),
}
"""Storage dtype to the coarser dtypes that its values may have been rounded to by mistake."""


class Signature(NamedTuple):
    """The pattern of a difference, such as `factor` or `transposed`, as a word and in a phrase.

    Attributes:
        error: one of `ERRORS`; empty where nothing stands out.
        words: a short phrase; `NO_PATTERN` where nothing stands out.
        ratio: the factor, where that is what it is.
    """

    error: str = ""
    words: str = NO_PATTERN
    ratio: float | None = None


NO_SIGNATURE = Signature()
"""The signature of a difference in which nothing stands out."""


def extreme(candidate: Tensor, reference: Tensor) -> Signature | None:
    """Return the pattern of a difference that is NaN, all zero, or only in the sign of zero.

    Args:
        candidate: differs from `reference`, in equal shape and dtype.
        reference: what it should be.
    """
    if not is_measured(candidate):
        zero = (
            candidate.numel() >= LEAST_ELEMENTS
            and not candidate.reshape(-1).view(torch.uint8).any()
        )
        return Signature("zero", "all zero") if zero else None
    if not torch.isfinite(candidate).all() or not torch.isfinite(reference).all():
        return Signature("not finite", NOT_FINITE[0 if candidate.isnan().all() else 1])
    if torch.equal(candidate, reference):
        return Signature("sign of zero", "sign of zero")
    if candidate.numel() > 1 and not candidate.any():
        return Signature("zero", "all zero")
    return None


def form(candidate: Tensor, reference: Tensor, unit: float) -> Signature:
    """Recognize an error pattern, such as a factor or a rounding, from two tensors alone.

    Args:
        candidate: differs from `reference`, in equal shape and dtype, and is not `extreme`.
        reference: what it should be.
        unit: unit roundoff of what computed them.
    """
    moved = _moved_signature(candidate, reference)
    if not is_measured(candidate):
        return moved or _of_integers(candidate, reference)
    candidate_tensor, reference_tensor = (
        candidate.double().reshape(-1),
        reference.double().reshape(-1),
    )
    eps = torch.finfo(candidate.dtype).eps
    exact = constant_ratio(candidate_tensor, reference_tensor, eps)
    if exact is not None:
        return factor(exact)
    return (
        _of_number(candidate_tensor, reference_tensor, unit)
        or moved
        or _rounded_signature(candidate, reference)
        or _said("edge", edges(candidate_tensor, reference_tensor, eps))
        or _said("stretch", stretch_of(candidate_tensor, reference_tensor))
        or _fitted_signature(candidate_tensor, reference_tensor, unit)
        or _on_grid(candidate, reference)
        or NO_SIGNATURE
    )


def _said(error: str, words: str) -> Signature | None:
    return Signature(error, words) if words else None


def factor(ratio: float, *, exact: bool = True) -> Signature:
    """Return the error pattern of a constant factor other than 1, with the factor in words."""
    return Signature("factor", f"{words_unlike_1(ratio, exact=exact)} times the reference", ratio)


def times(ratio: float, *, exact: bool = True) -> str:
    """Return a constant `ratio` in words, such as `2 times the reference`."""
    return f"{words_of(ratio, exact=exact)} times the reference"


def is_measured(tensor: Tensor) -> bool:
    """Return whether a tensor's differences can be measured: it has floats of 2 bytes or more."""
    return tensor.is_floating_point() and tensor.dtype.itemsize > 1


def _of_integers(candidate: Tensor, reference: Tensor) -> Signature:
    """Recognize a constant factor between integer tensors, such as a doubled step counter."""
    if candidate.dtype.itemsize == 1 or candidate.dtype.is_complex:
        return NO_SIGNATURE
    candidate_tensor, reference_tensor = (
        candidate.double().reshape(-1),
        reference.double().reshape(-1),
    )
    if not reference_tensor.all() or not candidate_tensor.all():
        return NO_SIGNATURE
    if len(candidate_tensor) == 1:
        return _of_number(candidate_tensor, reference_tensor, 0.0) or NO_SIGNATURE
    ratio = float(candidate_tensor[0] / reference_tensor[0])
    same = torch.equal(
        candidate_tensor * float(reference_tensor[0]), reference_tensor * float(candidate_tensor[0])
    )
    return factor(ratio) if same else NO_SIGNATURE


def _of_number(candidate_tensor: Tensor, reference_tensor: Tensor, unit: float) -> Signature | None:
    if len(candidate_tensor) > 1:
        return None
    ratio = simple_ratio(float(candidate_tensor), float(reference_tensor), unit)
    return None if ratio is None else factor(ratio, exact=False)


def _fitted_signature(
    candidate_tensor: Tensor, reference_tensor: Tensor, unit: float
) -> Signature | None:
    """Recognize a constant factor by least squares, up to the rounding of both computations."""
    fewest = 2 if unit < FINE else LEAST_ELEMENTS
    fit = Fit.of(candidate_tensor, reference_tensor) if len(candidate_tensor) >= fewest else None
    if fit is None or not fit.explains(unit):
        return None
    return fitted(fit)


def fitted(fit: Fit) -> Signature:
    """Return the error pattern of a least-squares factor, with the error that it leaves."""
    signature = factor(fit.factor, exact=False)
    return signature._replace(words=f"{signature.words} up to {fit.residual:.1g}")


def _moved_signature(candidate: Tensor, reference: Tensor) -> Signature | None:
    """Recognize equal values in other places: transposed, or in another order."""
    if candidate.numel() < LEAST_ELEMENTS or candidate.dtype.is_complex:
        return None
    candidate_tensor, reference_tensor = (
        side.contiguous().view(LANES[side.itemsize]) for side in (candidate, reference)
    )
    if not torch.equal(
        candidate_tensor.reshape(-1).sort()[0], reference_tensor.reshape(-1).sort()[0]
    ):
        return None
    if len(torch.unique(reference_tensor)) < LEAST_ELEMENTS:
        return None  # a few values in other places are no tensor that was moved as a whole
    if candidate_tensor.dim() == 2 and torch.equal(
        reference_tensor.T.reshape(candidate_tensor.shape), candidate_tensor
    ):
        return Signature("transposed", "the reference, transposed")
    for dim, which in (
        enumerate(("rows", "columns")[: candidate_tensor.dim()])
        if candidate_tensor.dim() > 1
        else ()
    ):
        sides = (
            side.transpose(0, dim).reshape(side.shape[dim], -1)
            for side in (candidate_tensor, reference_tensor)
        )
        if torch.equal(*(torch.unique(side, dim=0) for side in sides)):
            return Signature("reordered", f"the reference's {which} in another order")
    return Signature("reordered", "the reference's values in other places")


def _rounded_signature(candidate: Tensor, reference: Tensor) -> Signature | None:
    if candidate.numel() == 1 and not float(torch.frexp(candidate)[0]) % 0.5:
        return None  # a power of two is a number of every grid, and is often chosen
    for grid in COARSER.get(candidate.dtype, ()):
        if not has_all(grid, candidate) or has_all(grid, reference):
            continue
        # A 1 is a number of every grid, but is no rounding of a value that is far from it.
        candidate_tensor, reference_tensor = candidate.double(), reference.double()
        if bool(
            ((candidate_tensor - reference_tensor).abs() <= step_at(reference_tensor, grid)).all()
        ):
            return Signature("rounded", f"rounded to {dtype_name(grid)}")
    return None


def _on_grid(candidate: Tensor, reference: Tensor) -> Signature | None:
    """Recognize values that all lie on the grid of a coarser dtype, when the reference's do not.

    A few numbers lie on every grid, and so do 0 and the powers of two.
    """
    for grid in COARSER.get(candidate.dtype, ()):
        if has_all(grid, candidate) and not has_all(grid, reference):
            mantissa, _ = torch.frexp(candidate)
            distance = (candidate.double() - reference.double()).norm()
            if distance > COARSEST * reference.double().norm():
                return None  # other values, which happen to have been rounded
            if len(torch.unique(mantissa)) >= LEAST_ELEMENTS:
                return Signature("rounded", f"all on the grid of {dtype_name(grid)}")
    return None
