"""Name the kind of error that a difference looks like: its form often tells the cause."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import isfinite, lgamma, log, log2

import torch
from torch import Tensor

from pytest_precision.matrix.contract import dtype_name
from pytest_precision.parity.words import power_of_two

VALUES = "values"
"""The signature of a difference in which nothing stands out."""

NOT_FINITE = ("all NaN", "not finite")

SAME = 1e-6
"""Relative distance within which six digits are the same."""

SEGMENTS = 4
"""Parts of a tensor, each with a constant ratio, up to which edges of buffers explain them."""

SHORTEST = 8
"""Fewest elements of such a part."""

UNLIKELY = 1e-9
"""Chance below which elements that differ are not neighbours by accident, in some tensor and step
of a large suite."""

COARSER = {
    torch.float64: (torch.float32, torch.bfloat16, torch.float16),
    torch.float32: (torch.bfloat16, torch.float16),
}
"""Storage dtype to the coarser dtypes that its values may have been rounded to by mistake."""


def signature(
    candidate: Tensor, reference: Tensor, twin: Callable[[Tensor], str] = lambda _: ""
) -> str:
    """Return what the difference of two tensors of equal shape and dtype looks like.

    Args:
        candidate: differs from `reference`.
        reference: what it should be.
        twin: says, in words, which other tensor of the reference has the candidate's bytes.

    Returns:
        A short phrase; `VALUES` where nothing stands out.
    """
    if not candidate.is_floating_point() or candidate.dtype.itemsize == 1:
        return _of_codes(candidate, twin)
    ours, theirs = candidate.double().reshape(-1), reference.double().reshape(-1)
    if not torch.isfinite(ours).all() or not torch.isfinite(theirs).all():
        return NOT_FINITE[0] if ours.isnan().all() else NOT_FINITE[1]
    if torch.equal(ours, theirs):
        return "sign of zero"
    if len(ours) > 1 and not ours.any():
        return "all zero"
    eps = torch.finfo(candidate.dtype).eps
    return (
        twin(candidate)
        or times(constant_ratio(ours, theirs, eps))
        or _rounded(candidate, reference)
        or _segments(ours, theirs, eps)
        or _part(ours, theirs)
        or VALUES
    )


def is_telling(words: str) -> bool:
    """Return whether a signature says more than the figures of a difference do."""
    return words not in (VALUES, *NOT_FINITE)


def _of_codes(candidate: Tensor, twin: Callable[[Tensor], str]) -> str:
    """Say what integers and bytes can show: what they are, and nothing of how far they are off."""
    if candidate.numel() < SHORTEST:
        return VALUES
    zero = not candidate.reshape(-1).view(torch.uint8).any()
    return "all zero" if zero else twin(candidate) or VALUES


def constant_ratio(ours: Tensor, theirs: Tensor, eps: float) -> float | None:
    """Return the constant factor between the two, up to the rounding of both; None if none.

    Args:
        ours: fp64, shape [n], all finite.
        theirs: likewise.
        eps: of the dtype in which both were stored.
    """
    nonzero = theirs != 0
    if nonzero.sum() < 2 or bool(ours[~nonzero].any()):
        return None
    ratios = ours[nonzero] / theirs[nonzero]
    middle = float(ratios.median())
    # Each side is a value rounded once, which moves it by eps / 2 at most, and the ratio by eps.
    spread = float((ratios - middle).abs().max())
    constant = middle != 0 and spread <= 2 * eps * abs(middle) and abs(middle - 1) > 2 * eps
    return middle if constant else None


def times(ratio: float | None) -> str:
    """Say a constant factor; nothing where there is none."""
    return "" if ratio is None else f"{_factor(ratio)} times the reference"


def _factor(ratio: float) -> str:
    """Format a factor; that of a loss scale is a power of two, up to the rounding of a sum."""
    if not ratio or not isfinite(ratio):  # one of the two is 0 where the other is not
        return f"{ratio:.6g}"
    nearest = 2.0 ** round(log2(abs(ratio)))
    exact = abs(abs(ratio) / nearest - 1) < SAME and power_of_two(nearest)
    return f"{'-' * (ratio < 0)}{exact}" if exact else f"{ratio:.6g}"


def _rounded(candidate: Tensor, reference: Tensor) -> str:
    for grid in COARSER.get(candidate.dtype, ()):
        rounded = on_grid(candidate, grid) and not on_grid(reference, grid)
        if rounded and _within_a_step(candidate.double(), reference.double(), grid):
            return f"rounded to {dtype_name(grid)}"
    return ""


def _within_a_step(ours: Tensor, theirs: Tensor, grid: torch.dtype) -> bool:
    """Return whether a rounding to `grid`, in any direction, could move every value this far.

    A 1 lies on every grid, but is no rounding of a value that is far from it.
    """
    limits = torch.finfo(grid)
    _, exponent = torch.frexp(theirs.abs().clamp(min=limits.tiny))
    step = torch.ldexp(torch.full_like(theirs, limits.eps), exponent - 1)
    return bool(((ours - theirs).abs() <= step).all())


def on_grid(tensor: Tensor, grid: torch.dtype) -> bool:
    """Return whether `grid` has every value of a tensor."""
    return torch.equal(tensor.to(grid).to(tensor.dtype), tensor)


def _segments(ours: Tensor, theirs: Tensor, eps: float) -> str:
    """Tell where a constant ratio changes, as it does at the edge of a buffer or of a bucket."""
    if not theirs.all():
        return ""
    ratios = ours / theirs
    jumps = (ratios.diff().abs() > 4 * eps * ratios[1:].abs()).nonzero().view(-1) + 1
    if not 0 < len(jumps) < SEGMENTS:
        return ""
    edges = [0, *jumps.tolist(), len(ratios)]
    parts = [ratios[start:stop] for start, stop in pairwise(edges)]
    if min(map(len, parts)) < SHORTEST:
        return ""
    first, *others = (_factor(float(part.median())) for part in parts)
    if {first} == {*others}:  # Ratios that read alike differ by rounding alone.
        return ""
    changes = [
        f"{ratio} from element {edge}" for ratio, edge in zip(others, edges[1:], strict=False)
    ]
    return f"{first} times the reference, {', '.join(changes)}"


def _part(ours: Tensor, theirs: Tensor) -> str:
    """Tell that every element of one stretch differs, and none outside of it.

    Rounding scatters: the stretch must be one that as many elements drawn at random hardly form.
    """
    differ = (ours != theirs).nonzero().view(-1)
    start, stop, size = int(differ[0]), int(differ[-1]) + 1, len(ours)
    stretch = stop - start
    if len(differ) < stretch or _log_chance(stretch, size) > log(UNLIKELY):
        return ""
    if start == 0:
        return f"different in the first {stop} of {size} elements only"
    if stop == size:
        return f"different in the last {stretch} of {size} elements only"
    return f"different in elements {start} to {stop - 1} of {size} only"


def _log_chance(stretch: int, size: int) -> float:
    """Return the logarithm of the chance that elements drawn at random are neighbours."""
    rest = size - stretch
    return log(rest + 1) - (lgamma(size + 1) - lgamma(stretch + 1) - lgamma(rest + 1))
