"""Find the kinds of tensors that are the same on both sides at a moment, without a pair for each.

Two runs that agree are the common case, and have a million pairs of 10,000 tensors. What ranks show
of a kind is the same in every step, so that which rows belong together is found once, and digests
are then compared as columns. A kind of which anything differs, or is held otherwise on the other
side, is left to `align`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pytest_precision.engine.observation import Place, Span
from pytest_precision.parity.compare.cover import (
    elements_at,
    lies_within,
    overlapping,
    plain_place,
)
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.rank_rows import TensorSlot
from pytest_precision.trace.reader import Trace

TensorName: TypeAlias = tuple[str, int | None]
"""Name, and the rank where each has a tensor of its own."""

PartKey: TypeAlias = tuple[TensorName, str, tuple[int, ...], Place]
"""Of a part: the tensor, its dtype and shape, and where in it the part lies."""

Numbers: TypeAlias = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class AlikeTensors:
    """Tensors of one kind that have the same bytes on both sides.

    Attributes:
        kind: their kind.
        keys: name of each, and rank.
        nbytes: number of bytes of the candidate's pieces.
        dtypes: their dtypes.
    """

    kind: str
    keys: tuple[TensorName, ...]
    nbytes: int
    dtypes: frozenset[str]


@dataclass(frozen=True)
class _Outline:
    """What ranks show of one kind of tensors at a moment, whatever the values are.

    Attributes:
        rows: of each part of each tensor, the number of one row.
        replicas: numbers of other rows of the same part, each with that of the first one.
        tensors: what it is, of the candidate.
    """

    rows: dict[PartKey, int]
    replicas: list[tuple[int, int]]
    tensors: AlikeTensors


@dataclass(frozen=True)
class _Matched:
    """Which rows of two sides belong together: they are equal if the tensors are.

    Attributes:
        tensors: all of them.
        sides: numbers of rows of the candidate, and those of the reference.
        replicas: of each side, numbers of rows, and those of others that must be equal.
    """

    tensors: AlikeTensors
    sides: tuple[Numbers, Numbers]
    replicas: tuple[tuple[Numbers, Numbers], tuple[Numbers, Numbers]]


class AlikeKinds:
    """Finds the kinds of which all tensors are the same bytes on both sides.

    Args:
        candidate: one side.
        reference: the other.
    """

    def __init__(self, candidate: Trace, reference: Trace) -> None:
        self._sides = candidate, reference
        self._matched: dict[tuple[str, bytes, bytes], _Matched | None] = {}

    def at(
        self, moments: tuple[Moment, Moment], left_out: frozenset[str]
    ) -> Iterator[AlikeTensors]:
        """Yield the tensors of each kind that is alike at two moments.

        Args:
            moments: two that belong together.
            left_out: kinds that are not compared.
        """
        kinds, others = (
            trace.kinds_at(moment) for trace, moment in zip(self._sides, moments, strict=True)
        )
        for kind in sorted(kinds & others - left_out):
            ours, theirs = self._sides
            if ours.digest_name(kind) == theirs.digest_name(kind):
                alike = self._of_kind(kind, moments)
                if alike is not None:
                    yield alike

    def _of_kind(self, kind: str, moments: tuple[Moment, Moment]) -> AlikeTensors | None:
        sides = [
            trace.rows_at(moment, kind) for trace, moment in zip(self._sides, moments, strict=True)
        ]
        ours, theirs = (rows.slots for rows in sides)
        key = kind, ours.tobytes(), theirs.tobytes()
        if key not in self._matched:
            self._matched[key] = self._match(kind, ours, theirs)
        matched = self._matched[key]
        if matched is None:
            return None
        candidate, reference = (
            rows.of(numbers) for rows, numbers in zip(sides, matched.sides, strict=True)
        )
        alike = candidate.same_bytes(reference) and all(
            rows.of(first).same_bytes(rows.of(others))
            for rows, (first, others) in zip(sides, matched.replicas, strict=True)
        )
        return matched.tensors if alike else None

    def _match(self, kind: str, *slots: npt.NDArray[np.int64]) -> _Matched | None:
        """Return which rows belong together; None if a side holds something otherwise."""
        outlines = [
            _outline(kind, [*trace.slots_of(numbers)])
            for trace, numbers in zip(self._sides, slots, strict=True)
        ]
        candidate_outline, reference_outline = outlines
        if (
            candidate_outline is None
            or reference_outline is None
            or candidate_outline.rows.keys() != reference_outline.rows.keys()
        ):
            return None
        sides = (
            np.fromiter(candidate_outline.rows.values(), np.intp),
            np.fromiter(map(reference_outline.rows.__getitem__, candidate_outline.rows), np.intp),
        )
        return _Matched(
            candidate_outline.tensors,
            sides,
            (_columns(candidate_outline.replicas), _columns(reference_outline.replicas)),
        )


def _columns(pairs: Sequence[tuple[int, int]]) -> tuple[Numbers, Numbers]:
    both = np.array(pairs, np.intp).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _outline(kind: str, slots: Sequence[tuple[TensorSlot, int]]) -> _Outline | None:
    """Return the outline of a kind on all ranks; None if places alone do not join its pieces.

    Args:
        kind: of all tensors.
        slots: slot and rank of each row.
    """
    tensors: dict[TensorName, list[int]] = {}
    for number, (slot, rank) in enumerate(slots):
        tensors.setdefault((slot.name, rank if slot.local else None), []).append(number)
    if len({rank is None for _, rank in tensors}) > 1:
        return None
    rows: dict[PartKey, int] = {}
    replicas: list[tuple[int, int]] = []
    for name, numbers in tensors.items():
        places = _places([slots[number][0] for number in numbers])
        if places is None:
            return None
        first_slot = slots[numbers[0]][0]
        for number, place in zip(numbers, places, strict=True):
            holder = rows.setdefault((name, first_slot.dtype, first_slot.shape, place), number)
            if holder != number:
                replicas.append((number, holder))
    alike_tensors = AlikeTensors(
        kind,
        tuple(tensors),
        sum(slot.nbytes for slot, _ in slots),
        frozenset(slot.dtype for slot, _ in slots),
    )
    return _Outline(rows, replicas, alike_tensors)


def _places(pieces: Sequence[TensorSlot]) -> list[Place] | None:
    """Return the place of each piece of a tensor; None if they do not form a whole, or overlap."""
    first, *others = pieces
    if any((piece.dtype, piece.shape) != (first.dtype, first.shape) for piece in others):
        return None
    size = math.prod(first.shape)
    if first.piece == first.shape and all(piece.place == first.place for piece in others):
        return [Span(0, size)] * len(pieces)
    if not all(lies_within(piece.shape, piece.place) for piece in pieces):
        return None
    places = [plain_place(piece.shape, piece.place) for piece in pieces]
    parts = tuple(place for place in dict.fromkeys(places) if elements_at(place))
    if not first.local and sum(map(elements_at, parts)) != size:
        return None
    return places if overlapping(first.shape, parts) is None else None
