"""Fit: find how often each microbatch counts in a gradient, by least squares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_precision.recorders.gradients.pieces import part
from pytest_precision.recorders.gradients.plain import PlainMicrobatch

ROOM_OF_FIT = 4
"""How much more than one tensor may be off, all of a fit may leave."""

NEAR_ONE = 2.0**-5
"""How far a count may be from a number that it stands for, where few tensors are fitted, or the
gradients of several microbatches are much alike."""


CLEARLY = 4
"""How much more than they leave do counts other than 1 explain, where they are no rounding.
That of NVFP4 has a direction: it moves counts by a half, and leaves as much as it explains."""


class MicrobatchFit(NamedTuple):
    """The least-squares counts with which microbatches' gradients add up to given gradients.

    Attributes:
        counts: how often each microbatch counts; one without a gradient counts once, as nothing
            tells how often it does.
        moved: norm of what the counts change from a sum in which each counts once.
        left: norm of what they leave unexplained.
    """

    counts: list[float]
    moved: float
    left: float

    @property
    def is_clear(self) -> bool:
        """Return whether the counts' differences from 1 far exceed what the fit cannot explain."""
        return self.moved > CLEARLY * self.left


def fit_by_dealt(
    found: Sequence[Any], single: Sequence[PlainMicrobatch], size: int, near: float
) -> MicrobatchFit | None:
    """Find how often each microbatch counts in a rank's gradients; None if no counts explain them.

    Args:
        found: `HeldGradient` ones of one kind and rank.
        single: what each microbatch gives; empty where they are too many to be kept.
        size: of the data-parallel dimension.
        near: what rounding leaves of a tensor at least.
    """
    own = dealt_to(found, single, size)
    return fit_by(found, own, near) if own else None


def dealt_to(
    found: Sequence[Any], own: Sequence[PlainMicrobatch], size: int
) -> list[PlainMicrobatch]:
    """Return the microbatches that a rank's local gradient, or the reduced gradient, should sum."""
    return [one for one in own if found[0].share in (None, one.number % size)]


def fit_by(
    found: Sequence[Any], dealt: Sequence[PlainMicrobatch], near: float
) -> MicrobatchFit | None:
    """Fit gradients by a weighted sum of microbatches' gradients; None if they do not fit."""
    columns = torch.stack([_joined(found, one.gradients) for one in dealt], 1)
    got = torch.cat([one.got.reshape(-1) for one in found]).unsqueeze(1)
    counts = torch.linalg.lstsq(columns, got).solution
    left = float((columns @ counts - got).norm())
    if not left <= ROOM_OF_FIT * near * float(got.norm()):
        return None
    counts = counts.masked_fill((columns.norm(dim=0) == 0).unsqueeze(1), 1.0)
    return MicrobatchFit(counts.reshape(-1).tolist(), float((columns @ (counts - 1)).norm()), left)


def _joined(found: Sequence[Any], gradients: Mapping[str, Tensor]) -> Tensor:
    parts = []
    for one in found:
        gradient = gradients.get(one.name)
        if gradient is None:
            gradient = torch.zeros(one.seen.shape, dtype=torch.float64)
        parts.append(part(gradient, one.seen).reshape(-1))
    return torch.cat(parts)
