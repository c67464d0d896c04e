"""Whether a tolerance could have told a wrong tensor from a right one.

A bound above the size of an element lets it be anything, zero included. One above the way that a
weight goes lets it stay where both sides have started. Where a criterion does that to most elements
of a kind, agreement in that kind says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_precision.observation import causal_rank
from pytest_precision.parity.compare import common_dtype
from pytest_precision.parity.criterion import Criteria, Tolerance
from pytest_precision.parity.explain import percent
from pytest_precision.trace.store import Entry, Trace

WEIGHTS = frozenset({"used_param", "master", "param"})
"""Kinds that both sides start alike, so that only what they do from there proves anything."""


class Slack(NamedTuple):
    """What a criterion leaves to one piece of a logical tensor over the whole run.

    Attributes:
        name: of the logical tensor.
        counted: number of elements that are ever anything but zero or, of weights, that move.
        free: of these, the number whose bound is above whatever they ever were, or moved by; 0
            where that is not most of them.
        largest: size, or way, of any of them.
    """

    name: str
    counted: int
    free: int
    largest: float


def proves_nothing(
    candidate: Trace, reference: Trace, criteria: Criteria, compared: Set[str]
) -> list[str]:
    """Name the kinds whose tolerance allows most elements anything, in causal order.

    Only floating and complex tensors have a size that a tolerance can be held against, and only
    elements that are not zero throughout: those of an expert that gets no token prove nothing.

    Args:
        candidate: one side; its dtypes matter where the two may be stored in different ones.
        reference: whose sizes count.
        criteria: by kind.
        compared: kinds.
    """
    found = []
    for kind in sorted(compared, key=causal_rank):
        criterion = criteria.for_kind(kind)
        if isinstance(criterion, Tolerance):
            slacks = [*_slacks(candidate, reference, kind, criterion)]
            free = sum(slack.counted for slack in slacks if slack.free)
            if 2 * free > sum(slack.counted for slack in slacks):
                found.append(_words(kind, criterion, slacks))
    return found


def _slacks(candidate: Trace, reference: Trace, kind: str, criterion: Tolerance) -> Iterator[Slack]:
    theirs = candidate.dtypes().get(kind, {})
    for entries in _pieces(reference, kind):
        name, dtype = entries[0].name, getattr(torch, entries[0].dtype)
        other = getattr(torch, theirs.get(name, entries[0].dtype))
        common = common_dtype(other, dtype, storage=criterion.storage)
        if common is not None and (common.is_floating_point or common.is_complex):
            yield _slack(reference, entries, criterion, common)


def _pieces(trace: Trace, kind: str) -> list[list[Entry]]:
    """Return each piece of a kind at all moments in order; of replicas only one."""
    pieces: dict[object, dict[object, Entry]] = {}
    for moment in trace.moments:
        for entry in trace.entries(moment):
            if entry.kind == kind:
                place = entry.rank if entry.local else entry.place
                pieces.setdefault((entry.name, place, entry.piece), {}).setdefault(moment, entry)
    return [[*entries.values()] for entries in pieces.values()]


def _slack(trace: Trace, entries: list[Entry], criterion: Tolerance, dtype: torch.dtype) -> Slack:
    """Look from the last moment back, until most elements are seen to be held."""
    name, kind = entries[0].name, entries[0].kind
    start = _values(trace, entries[0]) if kind in WEIGHTS else torch.zeros(())
    size = way = torch.zeros(entries[0].piece, dtype=torch.float64)
    counted = free = 0
    for entry in reversed(entries):
        values = _values(trace, entry)
        size = torch.fmax(size, values.abs())
        way = torch.fmax(way, (values - start).abs())
        there = way > 0
        counted = int(there.count_nonzero())
        free = int((there & (criterion.bound(size, dtype) > way)).count_nonzero())
        if counted and 2 * free <= counted:
            return Slack(name, counted, 0, 0.0)
    return Slack(name, counted, free, float(way.max()) if counted else 0.0)


def _values(trace: Trace, entry: Entry) -> Tensor:
    """Return the values in fp64, those that are not finite as zeros."""
    tensor = trace.tensor(entry)
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    return tensor.to(wide).nan_to_num(0.0, 0.0, 0.0)


def _words(kind: str, criterion: Tolerance, slacks: list[Slack]) -> str:
    """Say what is allowed to the tensor that has the most elements of which anything is."""
    names: dict[str, Slack] = {}
    for slack in slacks:
        before = names.get(slack.name, Slack(slack.name, 0, 0, 0.0))
        counted, free = before.counted + slack.counted, before.free + slack.free
        largest = max(before.largest, slack.largest)
        names[slack.name] = Slack(slack.name, counted, free, largest)
    most = max(names.values(), key=lambda slack: slack.free)
    share = f"{kind} of {percent(most.free, most.counted)} of {most.name}"
    if kind in WEIGHTS:
        left = f"to stay as it was: no element of it moves by more than {most.largest:.2g}"
    else:
        left = f"to be anything: its largest element is {most.largest:.2g}"
    return f"{criterion.call} allows {share} {left}"
