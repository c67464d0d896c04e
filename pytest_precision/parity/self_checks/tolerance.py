"""Check that a tolerance is tight enough to tell a wrong tensor from a right one.

A bound above the size of an element lets it be anything, zero included. A bound above the total
update of a weight lets it stay where both sides have started. If a criterion does so for most
elements of a kind, agreement in that kind proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_precision.engine.kinds import STARTING_KINDS, causal_rank
from pytest_precision.parity.compare.bit_patterns import COMPLEX, FLOATS, step_at
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.criterion import Elementwise, Measure
from pytest_precision.parity.compare.tensors import common_dtype
from pytest_precision.parity.words import percent
from pytest_precision.trace.reader import Entry, Trace

SAMPLE = 4096
"""Number of elements of each tensor in the first, quick look."""


class History(NamedTuple):
    """The recorded entries of one tensor, or of one rank's shard of it, at all moments of the run.

    Attributes:
        entries: its entries at all moments, in order.
        dtype: dtype in which both sides are compared.
    """

    entries: list[Entry]
    dtype: torch.dtype


class Slack(NamedTuple):
    """How many elements of a tensor may, by its tolerance, be off by more than training moves them.

    Attributes:
        counted: number of elements that are not zero throughout or, of weights, that move.
        free: number of these whose bound is above all that they ever were, or moved by.
        largest: largest size, or distance moved, of any of them.
    """

    counted: int = 0
    free: int = 0
    largest: float = 0.0

    def __or__(self, other: Slack) -> Slack:
        largest = max(self.largest, other.largest)
        return Slack(self.counted + other.counted, self.free + other.free, largest)


class Freedom(NamedTuple):
    """A tolerance so loose that most elements of a kind of tensor may have any value.

    Attributes:
        kind: of the tensors.
        tolerance: what they are held to.
        words: what it allows, on one line.
    """

    kind: str
    tolerance: Elementwise
    words: str


def proves_nothing(
    candidate: Trace, reference: Trace, criteria: Criteria, compared: Set[str]
) -> list[Freedom]:
    """Return the tolerances so loose that most elements of a kind of tensor may have any value.

    Only floating and complex tensors have a size to compare a tolerance with, and only elements
    that are not zero throughout count: those of an expert that gets no token prove nothing.

    Args:
        candidate: one side; its dtypes matter where the two may be stored in different ones.
        reference: the side whose sizes count.
        criteria: the criteria of the comparison.
        compared: kinds that were compared.
    """
    freedoms = []
    groups = _histories(candidate, reference, criteria, compared)
    for kind, criterion in sorted(groups, key=lambda key: causal_rank(key[0])):
        histories = groups[kind, criterion]
        if not _constrains_final_values(reference, histories, criterion):
            slacks: dict[str, Slack] = {}
            for history in histories:
                name = history.entries[0].name
                slacks[name] = slacks.get(name, Slack()) | _slack(reference, history, criterion)
            if 2 * sum(s.free for s in slacks.values()) > sum(s.counted for s in slacks.values()):
                freedoms.append(Freedom(kind, criterion, _words(kind, criterion, slacks)))
    return freedoms


def allowed(criterion: Elementwise, size: Tensor, dtype: torch.dtype) -> Tensor:
    """Return how far each element of a tensor may differ in value under its criterion.

    Args:
        criterion: in bytes, whose bound is 0, or in steps, which grow with the size, or in value.
        size: magnitudes of the reference, in fp64.
        dtype: dtype in which both sides are compared.
    """
    bound = criterion.bound(size.numpy())
    if criterion.measure is not Measure.STEPS:
        return torch.as_tensor(bound, dtype=torch.float64)
    return float(bound) * step_at(size, dtype)  # as if steps did not grow on the way


def _histories(
    candidate: Trace, reference: Trace, criteria: Criteria, compared: Set[str]
) -> dict[tuple[str, Elementwise], list[History]]:
    """Return each tensor's or shard's recorded entries, by kind and tolerance, of one replica."""
    theirs = candidate.dtypes()
    groups: dict[tuple[str, Elementwise], dict[object, History]] = {}
    shown_entries = (entry for m in reference.moments for entry in reference.entries(m, compared))
    for entry in shown_entries:
        criterion = criteria.of_tensor(entry.kind, entry.name).criterion
        if not criterion.tolerates:
            continue
        assert isinstance(criterion, Elementwise)
        place = entry.rank if entry.local else entry.place
        key = entry.name, place, entry.piece
        histories = groups.setdefault((entry.kind, criterion), {})
        history = histories.get(key)
        if history is None:
            names = entry.dtype, theirs.get(entry.kind, {}).get(entry.name, entry.dtype)
            ours, other = (getattr(torch, name) for name in names)
            dtype = common_dtype(other, ours, check_dtype=criterion.check_dtype)
            if dtype in (*FLOATS, *COMPLEX):
                histories[key] = History([entry], dtype)
        elif history.entries[-1].rank == entry.rank:
            history.entries.append(entry)
    return {group: [*histories.values()] for group, histories in groups.items()}


def _constrains_final_values(
    trace: Trace, histories: list[History], criterion: Elementwise
) -> bool:
    """Return whether a tolerance constrains most elements, by a sample of final values."""
    if criterion.allowance(0.0) is not None:
        return False  # a few elements do not tell the norm of each tensor
    counted = free = 0.0
    for dtype in {history.dtype for history in histories}:
        of_dtype = [history.entries for history in histories if history.dtype is dtype]
        # Odd, so that of a matrix more than some columns are seen.
        strides = [max(1, math.prod(entries[0].piece) // SAMPLE) | 1 for entries in of_dtype]
        sampled = [*zip(of_dtype, strides, strict=True)]
        ends = [_values(trace, entries[-1], stride) for entries, stride in sampled]
        share = torch.tensor(strides, dtype=torch.float64)
        share = share.repeat_interleave(torch.tensor([len(end) for end in ends]))
        end = torch.cat(ends)
        way = end.abs()
        if of_dtype[0][0].kind in STARTING_KINDS:
            starts = [_values(trace, entries[0], stride) for entries, stride in sampled]
            way = (end - torch.cat(starts)).abs()
        mask = way > 0
        counted += float(share[mask].sum())
        free += float(share[mask & _free_tensor(criterion, end.abs(), way, dtype)].sum())
    return counted > 0 and 2 * free <= counted


def _slack(trace: Trace, history: History, criterion: Elementwise) -> Slack:
    start = torch.zeros(())
    if history.entries[0].kind in STARTING_KINDS:
        start = _values(trace, history.entries[0])
    size = way = torch.zeros((), dtype=torch.float64)
    for entry in history.entries:
        values = _values(trace, entry)
        size = torch.maximum(size, values.abs())
        way = torch.maximum(way, (values - start).abs())
    mask = way > 0
    counted = int(mask.count_nonzero())
    free = int((mask & _free_tensor(criterion, size, way, history.dtype)).count_nonzero())
    return Slack(counted, free, float(way.max()) if counted else 0.0)


def _free_tensor(criterion: Elementwise, size: Tensor, way: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask of elements whose tolerance exceeds `way`, how far training moved them."""
    most = criterion.allowance(float(size.norm()))
    if most is not None:
        return torch.full(way.shape, most > float(way.norm()))
    return allowed(criterion, size, dtype) > way


def _values(trace: Trace, entry: Entry, stride: int = 1) -> Tensor:
    """Return every `stride`-th element in fp64; NaN and infinities become zeros."""
    tensor = trace.tensor(entry).view(-1)[::stride]
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    return tensor.to(wide).nan_to_num(0.0, 0.0, 0.0)


def _words(kind: str, criterion: Elementwise, slacks: Mapping[str, Slack]) -> str:
    """Return words on what a too loose `criterion` allows, in the tensor with the most slack."""
    name = max(slacks, key=lambda name: slacks[name].free)
    counted, free, largest = slacks[name]
    share = f"{criterion.call} allows {kind} of {percent(free, counted)} of {name}"
    if kind in STARTING_KINDS:
        return f"{share} to stay as it was: no element of it moves by more than {largest:.2g}"
    return f"{share} to be anything: its largest element is {largest:.2g}"
