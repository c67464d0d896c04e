"""Recognize an error that all tensors differing at one moment have in common.

One tensor alone may have a factor by chance, and one element always has; all of them have one only
where it is the cause. What a backward rounds otherwise is a small share of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_precision.matrix.tensor_key import TensorKey
from pytest_precision.parity.compare.pairs import Pair
from pytest_precision.parity.compare.ratio import (
    COARSEST,
    ROUNDINGS,
    Fit,
    constant_ratio,
    unit_of,
)
from pytest_precision.parity.compare.signature import (
    NO_SIGNATURE,
    Signature,
    factor,
    fitted,
    is_measured,
    times,
)
from pytest_precision.parity.compare.stretches import LEAST_ELEMENTS
from pytest_precision.parity.explain.history import loss_scale, not_zeroed

LIKE = 4
"""How many times as much as all of them together a tensor may leave to share their factor: small
ones, whose terms cancel, carry more of the rounding."""


class Compared(NamedTuple):
    """A differing tensor of candidate and reference to compare, with the unit roundoff of the runs.

    Attributes:
        pair: both sides.
        ours: the candidate's tensor.
        theirs: the reference's.
        unit: unit roundoff of the coarsest products of either run, or of the tensors.
    """

    pair: Pair
    ours: Tensor
    theirs: Tensor
    unit: float

    @classmethod
    def of(cls, pair: Pair, ours: Tensor, theirs: Tensor) -> Compared:
        """Return a differing tensor with the coarsest roundoff of both runs' matrix products."""
        assert pair.candidate is not None
        assert pair.reference is not None
        sides = pair.candidate.trace, pair.reference.trace
        dtypes = {getattr(torch, name) for side in sides for name in side.header.products}
        dtypes |= {ours.dtype, theirs.dtype}
        units = (unit_of(dtype) for dtype in dtypes if dtype.is_floating_point)
        return cls(pair, ours, theirs, max(units, default=0.0))

    @property
    def part(self) -> tuple[int | None, int | None]:
        """Return the tensor's rank and microbatch; each is None if all of them share the tensor."""
        return self.pair.rank, TensorKey.of(self.pair.kind, self.pair.name).microbatch

    @property
    def values(self) -> tuple[Tensor, Tensor]:
        """Return the candidate's and the reference's tensor in fp64, each of shape [n]."""
        return self.ours.double().reshape(-1), self.theirs.double().reshape(-1)


def signatures(compared: Sequence[Compared]) -> list[Signature] | None:
    """Return the error pattern of each tensor if a single error explains all; else None.

    Args:
        compared: all that differ of one kind at one moment, at least two.
    """
    if not all(is_measured(one.ours) and bool(one.ours.isfinite().all()) for one in compared):
        return None
    if not all(bool(one.theirs.isfinite().all()) for one in compared):
        return None
    ours, theirs = _joined(compared)
    if all(bool((side == side[0]).all()) for side in (ours, theirs)):
        return None  # one pair of numbers, which ranks of a replica have too, has some factor
    eps = max(torch.finfo(one.ours.dtype).eps for one in compared)
    exact = constant_ratio(ours, theirs, eps)
    if exact is not None:
        return [scaled(compared[0].pair, factor(exact))] * len(compared)
    unit = max(one.unit for one in compared)
    kept = not_zeroed([(one.pair, one.ours, one.theirs) for one in compared], unit)
    if kept is not None:
        return [kept] * len(compared)
    return _of_all(compared, unit) or _by_part(compared, unit)


def scaled(pair: Pair, found: Signature) -> Signature:
    """Name a factor `the loss scale` where it equals the reference's loss scale."""
    scale = loss_scale(pair) if found.ratio else None
    if scale is None or scale == 1 or found.ratio is None:
        return found
    for value, words in ((scale, "the loss scale"), (1 / scale, "1 over the loss scale")):
        if abs(found.ratio / value - 1) <= COARSEST:
            return Signature("loss scale", f"{found.words}, which is {words}")
    return found


def _joined(compared: Sequence[Compared]) -> tuple[Tensor, Tensor]:
    ours, theirs = zip(*(one.values for one in compared), strict=True)
    return torch.cat(ours), torch.cat(theirs)


def _of_all(compared: Sequence[Compared], unit: float) -> list[Signature] | None:
    """Return an error pattern per tensor if one factor explains all; None if none fits.

    A tensor that does not have the factor gets the empty signature.
    """
    fit = _fit(compared)
    if fit is None or not fit.explains(unit):
        return None
    said = scaled(compared[0].pair, fitted(fit))
    return [said if _shares(one, fit, unit) else NO_SIGNATURE for one in compared]


def _by_part(compared: Sequence[Compared], unit: float) -> list[Signature] | None:
    """Return the error pattern of one factor per part (rank and microbatch); None if none fits."""
    parts: dict[tuple[int | None, int | None], list[Compared]] = {}
    for one in compared:
        parts.setdefault(one.part, []).append(one)
    if len(parts) < 2:
        return None
    # A sum over microbatches has none from the second on, where each has a factor of its own.
    first = {part: own for part, own in parts.items() if part[1] == next(iter(parts))[1]}
    fits = {part: _fit(own) for part, own in first.items()}
    allowed = min(ROUNDINGS * unit, COARSEST)
    if any(fit is None or fit.residual > allowed for fit in fits.values()):
        return None
    known = {part: fit for part, fit in fits.items() if fit is not None}
    if not any(fit.explains(unit) for fit in known.values()):
        return None
    said = Signature("per rank", ", ".join(_where(fit, *part) for part, fit in known.items()))
    return [said if one.part in known else NO_SIGNATURE for one in compared]


def _where(fit: Fit, rank: int | None, microbatch: int | None) -> str:
    after = "" if microbatch is None else f" in microbatch {microbatch}"
    on = "" if rank is None else f" on rank {rank}"
    return f"{times(fit.factor, exact=False)}{after}{on}"


def _fit(compared: Sequence[Compared]) -> Fit | None:
    ours, theirs = _joined(compared)
    return Fit.of(ours, theirs) if len(ours) >= LEAST_ELEMENTS else None


def _shares(one: Compared, fit: Fit, unit: float) -> bool:
    """Return whether the factor common to all tensors also explains this tensor's difference."""
    ours, theirs = one.values
    rest = float((ours - fit.factor * theirs).norm())
    return rest <= LIKE * min(ROUNDINGS * unit, COARSEST) * abs(fit.factor) * float(theirs.norm())
