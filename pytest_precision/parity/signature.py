"""Name the kind of error that a difference looks like: its form often tells the cause."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_precision.parity.align import Pair, assemble
from pytest_precision.parity.judge import Finding
from pytest_precision.trace.store import Trace

COARSER = {
    torch.float64: (torch.float32, torch.bfloat16, torch.float16),
    torch.float32: (torch.bfloat16, torch.float16),
}
"""Storage dtype to the coarser dtypes that its values may have been rounded to by mistake."""


def signature(candidate: Tensor, reference: Tensor, earlier: Tensor | None) -> str:
    """Return what the difference of two tensors of equal shape and dtype looks like.

    Args:
        candidate: differs from `reference`.
        reference: what it should be.
        earlier: the reference one train step before, if there was one.

    Returns:
        A short phrase; `values` where nothing stands out.
    """
    if not candidate.is_floating_point() or candidate.dtype.itemsize == 1:
        return "values"
    ours, theirs = candidate.double(), reference.double()
    if not torch.isfinite(ours).all() or not torch.isfinite(theirs).all():
        return "all NaN" if ours.isnan().all() else "not finite"
    if torch.equal(ours, theirs):
        return "sign of zero"
    if not ours.any():
        return "all zero"
    if earlier is not None and earlier.shape == ours.shape and torch.equal(ours, earlier.double()):
        return "the value of the step before"
    ratio = _constant_ratio(ours, theirs, torch.finfo(candidate.dtype).eps)
    if ratio is not None:
        return f"{ratio:.6g} times the reference"
    for grid in COARSER.get(candidate.dtype, ()):
        rounded = _on_grid(candidate, grid) and not _on_grid(reference, grid)
        if rounded and _within_a_step(ours, theirs, grid):
            return f"rounded to {str(grid).removeprefix('torch.')}"
    return "values"


def _constant_ratio(ours: Tensor, theirs: Tensor, eps: float) -> float | None:
    """Return the constant factor between the two, up to the rounding of both; None if none."""
    nonzero = theirs != 0
    if nonzero.sum() < 2 or bool(ours[~nonzero].any()):
        return None
    ratios = ours[nonzero] / theirs[nonzero]
    middle = float(ratios.median())
    # Each side is a value rounded once, which moves it by eps / 2 at most, and the ratio by eps.
    spread = float((ratios - middle).abs().max())
    constant = spread <= 2 * eps * abs(middle) and abs(middle - 1) > 2 * eps
    return middle if constant else None


def _within_a_step(ours: Tensor, theirs: Tensor, grid: torch.dtype) -> bool:
    """Return whether a rounding to `grid`, in any direction, could move every value this far.

    A 1 lies on every grid, but is no rounding of a value that is far from it.
    """
    limits = torch.finfo(grid)
    _, exponent = torch.frexp(theirs.abs().clamp(min=limits.tiny))
    step = torch.ldexp(torch.full_like(theirs, limits.eps), exponent - 1)
    return bool(((ours - theirs).abs() <= step).all())


def _on_grid(tensor: Tensor, grid: torch.dtype) -> bool:
    return torch.equal(tensor.to(grid).to(tensor.dtype), tensor)


def describe(finding: Finding) -> str:
    """Return the signature of a finding in values; for others, the name of the problem."""
    pair = finding.pair
    if finding.problem != "values" or pair.candidate is None or pair.reference is None:
        return finding.problem
    if pair.candidate.tensor is None or pair.reference.tensor is None:
        return finding.problem
    earlier = _one_step_earlier(pair, pair.reference.trace)
    return signature(pair.candidate.tensor, pair.reference.tensor, earlier)


def _one_step_earlier(pair: Pair, reference: Trace) -> Tensor | None:
    for moment in reversed(reference.moments):
        if (moment.step, moment.phase) == (pair.moment.step - 1, pair.moment.phase):
            pieces = [
                entry
                for entry in reference.entries(moment)
                if (entry.kind, entry.name) == (pair.kind, pair.name)
                and pair.rank in (None, entry.rank)
            ]
            return assemble(reference, pieces).tensor if pieces else None
    return None
