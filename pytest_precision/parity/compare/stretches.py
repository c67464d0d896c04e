"""Recognize stretches of neighbouring elements that differ alike, as at a buffer's edge."""

from __future__ import annotations

from itertools import pairwise
from math import lgamma, log

from torch import Tensor

from pytest_precision.parity.compare.ratio import words_of

SEGMENTS = 4
"""Parts of a tensor, each with a constant ratio, up to which edges of buffers explain them."""

LEAST_ELEMENTS = 8
"""Fewest elements of such a part, and of a tensor whose form tells something."""

UNLIKELY = 1e-9
"""Chance below which elements that differ are not neighbours by accident, in some tensor and step
of a large suite."""


def edges(ours: Tensor, theirs: Tensor, eps: float) -> str:
    """Describe at which elements the constant ratio of two tensors changes; empty if at none."""
    if not theirs.all():
        return ""
    ratios = ours / theirs
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


def stretch_of(ours: Tensor, theirs: Tensor) -> str:
    """Describe the one run of neighbouring elements that differ; empty if there is no single run.

    Rounding scatters: as many elements, drawn at random, must be unlikely to form such a run. Zeros
    on both sides do not count as agreement: rows of a table that no token has read have them.
    """
    unequal = ours != theirs
    differ = unequal.nonzero().view(-1)
    if not is_stretch(differ, len(ours)) or not ours[~unequal].any():
        return ""
    return f"different in {place(differ, len(ours))} only"


def is_stretch(positions: Tensor, size: int) -> bool:
    """Return whether positions are consecutive, and too many to be so by chance."""
    stretch = int(positions[-1]) + 1 - int(positions[0])
    return len(positions) == stretch and _log_chance(stretch, size) <= log(UNLIKELY)


def place(positions: Tensor, size: int) -> str:
    """Describe where consecutive elements lie in a tensor, such as `the first 8 of 64 elements`."""
    start, stop = int(positions[0]), int(positions[-1]) + 1
    if start == 0:
        return f"the first {stop} of {size} elements"
    if stop == size:
        return f"the last {stop - start} of {size} elements"
    return f"elements {start} to {stop - 1} of {size}"


def _log_chance(stretch: int, size: int) -> float:
    """Return the log probability that `stretch` of `size` elements are consecutive by chance."""
    rest = size - stretch
    return log(rest + 1) - (lgamma(size + 1) - lgamma(stretch + 1) - lgamma(rest + 1))
