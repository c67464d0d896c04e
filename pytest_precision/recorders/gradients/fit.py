"""Fit gradients by those of single microbatches: how often does each of them count?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pytest_precision.recorders.gradients.pieces import part
from pytest_precision.recorders.gradients.plain import PlainMicrobatch

ROOM_OF_FIT = 4
"""How much more than one tensor may be off, all of a fit may leave."""

NEAR_ONE = 2.0**-5
"""How far a count may be from a number that it stands for, where few tensors are fitted, or the
gradients of several microbatches are much alike."""


def counts_of(
    found: Sequence[Any], single: Sequence[PlainMicrobatch], size: int, near: float
) -> list[float] | None:
    """Return how often each microbatch counts in all of the tensors; None if that explains little.

    Args:
        found: `judged.HeldGradient` ones of one kind and rank.
        single: what each microbatch gives; empty where they are too many to be kept.
        size: of the data-parallel dimension.
        near: what rounding leaves of a tensor at least.
    """
    own = [one for one in single if found[0].share in (None, one.number % size)]
    return fitted_counts(found, own, near) if own else None


def fitted_counts(
    found: Sequence[Any], dealt: Sequence[PlainMicrobatch], near: float
) -> list[float] | None:
    """Return how often each microbatch counts, if that explains all of the tensors."""
    columns = torch.stack([_joined(found, one.gradients) for one in dealt], 1)
    got = torch.cat([one.got.reshape(-1) for one in found])
    solved = torch.linalg.lstsq(columns, got.unsqueeze(1)).solution
    left = float((columns @ solved - got.unsqueeze(1)).norm())
    if not left <= ROOM_OF_FIT * near * float(got.norm()):
        return None
    return [float(value) for value in solved.reshape(-1)]


def _joined(found: Sequence[Any], gradients: Mapping[str, Tensor]) -> Tensor:
    parts = []
    for one in found:
        gradient = gradients.get(one.name)
        if gradient is None:
            gradient = torch.zeros(one.seen.shape, dtype=torch.float64)
        parts.append(part(gradient, one.seen).reshape(-1))
    return torch.cat(parts)
