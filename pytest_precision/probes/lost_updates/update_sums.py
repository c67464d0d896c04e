"""Sum up, in fp64, how far exact updates and the actual ones are apart.

Small tensors of one rule are computed together, large ones in pieces that stay in a CPU's cache.
The sums of a whole step come to the host at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_precision.recorders.weights import (
    IN_CACHE,
    concatenated,
    lists_of_at_most,
    measured_at_once,
)

_FIGURES = 6
"""Figures of an update: see `sums`."""


@dataclass(frozen=True)
class Rule:
    """Computes the exact update of one parameter in fp64, chunk by chunk.

    Attributes:
        operands: tensors of the parameter's shape, as stored.
        compute: the update, fp64, from the effective weights before the step, fp64, and the same
            elements of the operands in their order.
        scalars: is equal where `compute` is the same function; None if it is this parameter's only.
    """

    operands: tuple[Tensor, ...]
    compute: Callable[..., Tensor]
    scalars: Hashable = None


class Update(NamedTuple):
    """How a step moved one shard.

    Attributes:
        rule: its exact update.
        before: the weight before the step.
        tensors: the weight after it, and the operands of the rule, flat.
    """

    rule: Rule
    before: Tensor
    tensors: tuple[Tensor, ...]

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return self.before.numel()

    @property
    def kind(self) -> Hashable:
        """Return a key that is equal for updates which can be computed together."""
        dtypes = tuple(tensor.dtype for tensor in (self.before, *self.tensors))
        return self.rule.scalars, dtypes, self.tensors[0].device


def sums(updates: Sequence[Update]) -> list[list[float]]:
    """Return numbers of updates and lost ones, sums of |update|, |lost one|, update^2, error^2.

    Updates that are not finite are left out. Few steps have any, and to look for them takes longer
    than to compute once more what has some.
    """
    order: list[Update] = []
    totals: list[Tensor] = []
    for alike in _alike(updates):
        order += alike
        totals.append(_totals(alike, finite_only=False))
    figures: dict[int, list[float]] = {}
    rows = torch.cat(totals).cpu().tolist() if totals else []
    for update, row in zip(order, rows, strict=True):
        if not all(map(isfinite, row)):
            [row] = _totals([update], finite_only=True).tolist()
        figures[id(update)] = row
    return [figures[id(update)] for update in updates]


def _alike(updates: Sequence[Update]) -> Iterator[list[Update]]:
    """Yield lists of updates: small ones of one rule that stay in the cache, or a large one."""
    small: dict[Hashable, list[Update]] = defaultdict(list)
    for update in updates:
        if update.rule.scalars is None or update.size > IN_CACHE:
            yield [update]
        else:
            small[update.kind].append(update)
    for of_kind in small.values():
        yield from lists_of_at_most(of_kind, IN_CACHE)


def _totals(updates: Sequence[Update], *, finite_only: bool) -> Tensor:
    """Return a row of figures for each of some updates by one rule."""
    tensors = [*map(concatenated, zip(*(update.tensors for update in updates), strict=True))]
    device, sizes = tensors[0].device, [update.size for update in updates]
    before = concatenated([update.before for update in updates])
    total = torch.zeros(len(updates), _FIGURES, dtype=torch.float64, device=device)
    chunk = IN_CACHE if device.type == "cpu" else measured_at_once(device)
    flat = [torch.split(tensor, chunk) for tensor in (before, *tensors)]
    for old, new, *operands in zip(*flat, strict=True):
        weight = old.to(device).double()
        exact = updates[0].rule.compute(weight, *operands)
        moved = new.to(torch.float64, copy=True).sub_(weight)
        error = exact - moved
        if finite_only:
            finite = error.isfinite()
            exact, error = exact.where(finite, 0.0), error.where(finite, 0.0)
        lengths = sizes if len(sizes) > 1 else [exact.numel()]
        total += torch.stack([*_figures(exact, moved, error, lengths)])
    return total


def _figures(exact: Tensor, moved: Tensor, error: Tensor, lengths: list[int]) -> Iterator[Tensor]:
    """Yield the figures of each tensor of a concatenation, whose memory they overwrite."""
    squares = [(part.dot(part), off.dot(off)) for part, off in _parts(lengths, exact, error)]
    # Comparisons in place, which give 0.0 and 1.0: torch's own to bool take four times as long.
    still, size = moved.eq_(0), exact.abs_()
    sizes = [(part.sum(), part.dot(lost)) for part, lost in _parts(lengths, size, still)]
    updated = size.ne_(0)
    counts = [(part.sum(), part.dot(lost)) for part, lost in _parts(lengths, updated, still)]
    for row in zip(counts, sizes, squares, strict=True):
        yield torch.stack([figure for pair in row for figure in pair])


def _parts(lengths: list[int], *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(torch.split(tensor, lengths) for tensor in tensors), strict=True)
