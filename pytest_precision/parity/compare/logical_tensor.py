"""Join the pieces of a tensor that ranks recorded, by the place that each of them states.

Every element must be covered, and what several ranks hold must agree bit for bit. Of a tensor of
its own, such as the gradient of a matrix that is split over the ranks, a rank may hold a part
alone. Of shards whose digests alone were recorded, places say whether they are all, and the sum of
the digests is that of the whole tensor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pytest_precision.engine.observation import Chunk, Place, Span
from pytest_precision.errors import expected_but_got
from pytest_precision.parity.compare.bounds import Bitwise
from pytest_precision.parity.compare.cover import (
    elements_at,
    lies_within,
    overlapping,
    plain_place,
)
from pytest_precision.parity.compare.tensors import Difference, compare, same_bytes
from pytest_precision.trace.lin8 import added_digest, digest_of_zeros
from pytest_precision.trace.lin8_sums import DigestedPart
from pytest_precision.trace.named_digests import adds_up, named_digests
from pytest_precision.trace.reader import Entry, Trace

MOVED_AS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
"""Bytes per element to a dtype that moves them unchanged."""

LEAST_PART = 2**-12
"""Least share of a rank-local tensor that a rank must hold for the rest to be filled with zeros; a
stranger's recording may name any shape."""


@dataclass(frozen=True)
class Fault:
    """The reason why the pieces of a tensor that the ranks recorded cannot be joined to a whole.

    Attributes:
        problem: `replicas` that differ, or elements that are `uncovered`, or `pieces` that do not
            fit together.
        text: what is wrong, naming ranks.
        rank: the first rank that disagrees; None where none does.
        difference: between that rank's replica and the first one.
    """

    problem: str
    text: str
    rank: int | None = None
    difference: Difference | None = None


@dataclass(frozen=True)
class LogicalTensor:
    """A full tensor of one run, joined from its ranks' pieces, or the reason why they do not fit.

    Attributes:
        trace: the trace that holds the pieces.
        pieces: the pieces that were put together.
        fault: None where all pieces fit.
        joined: the whole tensor, where pieces had to be copied to form it.
    """

    trace: Trace
    pieces: tuple[Entry, ...]
    fault: Fault | None = None
    joined: Tensor | None = None

    @property
    def tensor(self) -> Tensor | None:
        """Return the full tensor; None if its pieces do not fit, or only hashes were recorded."""
        first = self.pieces[0]
        if self.joined is None and (first.offset is None or first.piece != first.shape):
            return None
        if self.fault is not None:
            return None
        return self.trace.tensor(first) if self.joined is None else self.joined

    def same_bytes(self, other: LogicalTensor) -> bool:
        """Return whether two full tensors are known to have the same bytes."""
        if self.fault or other.fault:
            return False
        ours, theirs = self.pieces[0], other.pieces[0]
        if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
            return False
        if self.joined is not None or other.joined is not None:
            whole, other_whole = self.tensor, other.tensor
            if whole is not None and other_whole is not None:
                return same_bytes(whole, other_whole)
        mine, others = self.parts, other.parts
        if self.joined is None and other.joined is None and mine.keys() == others.keys():
            return all(
                self.trace.same_bytes(piece, other.trace, others[place])
                for place, piece in mine.items()
            )
        shown_logical_tensor = self if any(piece.digest for piece in self.pieces) else other
        name = shown_logical_tensor.trace.digest_name(ours.kind)
        return self.digest(name) == other.digest(name)

    @property
    def parts(self) -> dict[Place, Entry]:
        """Return one piece of each place."""
        return {plain_place(p.shape, p.place): p for p in reversed(self.pieces)}

    def digest(self, name: str) -> str:
        """Return the digest of the full tensor, which nobody need hold; zeros where no rank does.

        Raises:
            ValueError: of shards, digests were recorded that cannot be added.
        """
        first = self.pieces[0]
        size = math.prod(first.shape)
        if self.joined is not None:
            return named_digests(name, [DigestedPart(self.joined, first.shape, Span(0, size))])[0]
        parts = self.parts
        if len(parts) == 1 and first.piece == first.shape:
            return self.trace.digest_of(first, name)
        if not adds_up(name):
            got = f"{name} of pieces of {first.kind} {first.name!r} on rank {first.rank}"
            raise ValueError(expected_but_got("digests that can be added", got))
        lacking = size - sum(map(elements_at, parts))
        zeros = digest_of_zeros(lacking * getattr(torch, first.dtype).itemsize)
        return added_digest(
            [zeros, *(self.trace.digest_of(piece, name) for piece in parts.values())]
        )

    def is_another_part(self, other_logical_tensor: LogicalTensor) -> bool:
        """Return whether two parts cover different elements of the same full tensor."""
        sides = self, other_logical_tensor
        ours, theirs = ({e.place: math.prod(e.piece) for e in side.pieces} for side in sides)
        shape = self.pieces[0].shape
        if shape != other_logical_tensor.pieces[0].shape or ours.keys() == theirs.keys():
            return False
        return not all(sum(sizes.values()) == math.prod(shape) for sizes in (ours, theirs))

    def rank_of(self, index: tuple[int, ...]) -> int | None:
        """Return the rank that holds the element at `index`; None where every rank holds it."""
        holders = [piece.rank for piece in self.pieces if _holds(piece, index)]
        return None if len(holders) == len(self.pieces) > 1 else holders[0]


def differing_rank(
    candidate_logical_tensor: LogicalTensor, reference_logical_tensor: LogicalTensor
) -> int | None:
    """Return the first rank whose shard differs, where both sides are cut alike; else None."""
    parts, others = candidate_logical_tensor.parts, reference_logical_tensor.parts
    if len(parts) < 2 or parts.keys() != others.keys():
        return None
    unlike = (
        piece.rank
        for place, piece in parts.items()
        if not candidate_logical_tensor.trace.same_bytes(
            piece, reference_logical_tensor.trace, others[place]
        )
    )
    return min(unlike, default=None)


def assemble(trace: Trace, pieces: list[Entry]) -> LogicalTensor:
    """Join the pieces that ranks recorded of one tensor, or say why they do not form a whole.

    A tensor that every rank holds whole is not copied.
    """
    entries = tuple(pieces)
    first_entry, *others = pieces
    for other in others:
        if (other.dtype, other.shape) != (first_entry.dtype, first_entry.shape):
            text = (
                f"{trace.rank_in_words(other.rank)} has {other.dtype}{list(other.shape)}, "
                f"{trace.rank_in_words(first_entry.rank)} {first_entry.dtype}"
                f"{list(first_entry.shape)}"
            )
            return LogicalTensor(trace, entries, Fault("pieces", text, other.rank))
    if (
        all(piece.place == first_entry.place for piece in others)
        and first_entry.piece == first_entry.shape
    ):
        return _replicas(trace, entries)
    return (_digested_shards if any(piece.digest for piece in pieces) else _shards)(trace, entries)


def _replicas(trace: Trace, pieces: tuple[Entry, ...]) -> LogicalTensor:
    first_entry = pieces[0]
    for piece in pieces[1:]:
        if not trace.same_bytes(piece, trace, first_entry):
            difference = None
            if not piece.digest:
                difference = compare(trace.tensor(piece), trace.tensor(first_entry), Bitwise())
            ranks = map(trace.rank_in_words, (piece.rank, first_entry.rank))
            text = f"{' and '.join(ranks)} hold different bits"
            return LogicalTensor(trace, pieces, Fault("replicas", text, piece.rank, difference))
    return LogicalTensor(trace, pieces)


def _digested_shards(trace: Trace, pieces: tuple[Entry, ...]) -> LogicalTensor:
    """Hold replicas of each shard together by their digests, and the shards to the whole tensor."""
    first_entry = pieces[0]
    fault = _unlike_replica(trace, pieces)
    if fault is not None:
        return LogicalTensor(trace, pieces, fault)
    holders = {
        plain_place(piece.shape, piece.place): piece.rank
        for piece in reversed(pieces)
        if math.prod(piece.piece)
    }
    both_places = overlapping(first_entry.shape, tuple(holders))
    if both_places is not None:
        ranks = " and ".join(trace.rank_in_words(holders[place]) for place in both_places)
        text = f"{ranks} hold parts that overlap, of which digests cannot say more"
        return LogicalTensor(trace, pieces, Fault("pieces", text, holders[both_places[1]]))
    missing = math.prod(first_entry.shape) - sum(map(elements_at, holders))
    if missing and not first_entry.local:
        text = f"no rank holds {missing} of {math.prod(first_entry.shape)} elements"
        return LogicalTensor(trace, pieces, Fault("uncovered", text))
    return LogicalTensor(trace, pieces)


def _unlike_replica(trace: Trace, pieces: tuple[Entry, ...]) -> Fault | None:
    """Return the fault of the first piece that lies outside, or differs from one of its place."""
    holders: dict[Place, Entry] = {}
    for piece in pieces:
        if not lies_within(piece.shape, piece.place):
            rank = trace.rank_in_words(piece.rank)
            text = f"{rank} says that {list(piece.piece)} lies at {piece.place}"
            return Fault("pieces", f"{text} of {list(piece.shape)}", piece.rank)
        holder = holders.setdefault(plain_place(piece.shape, piece.place), piece)
        if holder is not piece and not trace.same_bytes(piece, trace, holder):
            ranks = map(trace.rank_in_words, (piece.rank, holder.rank))
            text = f"{' and '.join(ranks)} hold different bits"
            return Fault("replicas", text, piece.rank)
    return None


def _shards(trace: Trace, pieces: tuple[Entry, ...]) -> LogicalTensor:
    first_entry = pieces[0]
    dtype = getattr(torch, first_entry.dtype)
    size = math.prod(first_entry.shape)
    sizes = {piece.place: math.prod(piece.piece) for piece in pieces}
    lacking = size - sum(sizes.values())
    # Before asking for memory: a stranger's recording may name any shape.
    if lacking > (1 - LEAST_PART) * size * first_entry.local:
        text = f"no rank holds {lacking} of {size} elements"
        return LogicalTensor(trace, pieces, Fault("uncovered", text))
    # As integers: not every dtype can be indexed, and no conversion may touch the bits.
    whole_tensor = torch.zeros(first_entry.shape, dtype=MOVED_AS[dtype.itemsize])
    covered_tensor = torch.zeros(first_entry.shape, dtype=torch.bool)
    for piece in pieces:
        tensor = trace.tensor(piece).view(whole_tensor.dtype)
        target, mask = region(whole_tensor, piece), region(covered_tensor, piece)
        if target.shape != tensor.shape:
            rank = trace.rank_in_words(piece.rank)
            text = f"{rank} says that {list(piece.piece)} lies at {piece.place}"
            fault = Fault("pieces", f"{text} of {list(piece.shape)}", piece.rank)
            return LogicalTensor(trace, pieces, fault)
        if mask.any():
            difference = compare(tensor[mask].view(dtype), target[mask].view(dtype), Bitwise())
            if difference is not None:
                text = f"{trace.rank_in_words(piece.rank)} holds other bits than a lower rank"
                return LogicalTensor(trace, pieces, Fault("replicas", text, piece.rank, difference))
        target.copy_(tensor)
        mask.fill_(True)
    missing = covered_tensor.numel() - int(covered_tensor.count_nonzero())
    if missing and not first_entry.local:
        text = f"no rank holds {missing} of {covered_tensor.numel()} elements"
        return LogicalTensor(trace, pieces, Fault("uncovered", text))
    return LogicalTensor(trace, pieces, joined=whole_tensor.view(dtype))


def region(tensor: Tensor, piece: Entry) -> Tensor:
    """Return a view of the part of a full tensor that one rank's `piece` covers."""
    if isinstance(piece.place, Chunk):
        for dim, (start, size) in enumerate(
            zip(piece.place.offsets, piece.place.sizes, strict=True)
        ):
            stop = min(start + size, tensor.shape[dim])
            tensor = tensor.narrow(dim, min(start, stop), stop - min(start, stop))
        return tensor
    span = tensor.view(-1)[piece.place.start : piece.place.stop]
    return span.view(piece.piece) if span.numel() == math.prod(piece.piece) else span


def _holds(piece: Entry, index: tuple[int, ...]) -> bool:
    if isinstance(piece.place, Chunk):
        bounds = zip(index, piece.place.offsets, piece.place.sizes, strict=True)
        return all(start <= i < start + size for i, start, size in bounds)
    flat = 0
    for i, size in zip(index, piece.shape, strict=True):
        flat = flat * size + i
    return piece.place.start <= flat < piece.place.stop
