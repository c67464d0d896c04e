"""Match the tensors of two recorded runs, each joined from the pieces that its ranks hold.

The pieces of the ranks are put together by the place that each of them states. Every element must
be covered, and what several ranks hold must agree bit for bit. Of a tensor of its own, such as the
gradient of a matrix that is split over the ranks, a rank may hold a part alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pytest_precision.engine.kinds import causal_rank
from pytest_precision.engine.observation import Chunk
from pytest_precision.errors import RecordingError
from pytest_precision.parity.compare.bounds import Bitwise
from pytest_precision.parity.compare.tensors import Difference, compare, same_bytes, with_values
from pytest_precision.trace.moment import END, Moment
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
        """Return the full tensor; None if its pieces do not fit, or only a hash was recorded."""
        if self.fault is not None or (self.joined is None and self.pieces[0].offset is None):
            return None
        return self.trace.tensor(self.pieces[0]) if self.joined is None else self.joined

    def same_bytes(self, other: LogicalTensor) -> bool:
        """Return whether two full tensors are known to have the same bytes."""
        if self.fault or other.fault:
            return False
        if self.joined is not None or other.joined is not None:
            whole, other_whole = self.tensor, other.tensor
            return whole is not None and other_whole is not None and same_bytes(whole, other_whole)
        ours, theirs = self.pieces[0], other.pieces[0]
        alike = (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        return alike and self.trace.same_bytes(ours, other.trace, theirs)

    def is_another_part(self, other: LogicalTensor) -> bool:
        """Return whether this and `other` cover different elements of the same full tensor."""
        sides = self, other
        ours, theirs = ({e.place: math.prod(e.piece) for e in side.pieces} for side in sides)
        shape = self.pieces[0].shape
        if shape != other.pieces[0].shape or ours.keys() == theirs.keys():
            return False
        return not all(sum(sizes.values()) == math.prod(shape) for sizes in (ours, theirs))

    def rank_of(self, index: tuple[int, ...]) -> int | None:
        """Return the rank that holds the element at `index`; None where every rank holds it."""
        holders = [piece.rank for piece in self.pieces if _holds(piece, index)]
        return None if len(holders) == len(self.pieces) > 1 else holders[0]


@dataclass(frozen=True)
class Pair:
    """One tensor of both runs at one step and phase: candidate's and reference's, None if missing.

    Attributes:
        moment: the candidate's moment.
        kind: kind of both tensors.
        name: name of both tensors.
        rank: the rank whose tensor it is, where every rank has one of its own.
        candidate: the layout under test.
        reference: what it must agree with.
        unlike: whether on one side alone every rank has a tensor of its own under this name.
    """

    moment: Moment
    kind: str
    name: str
    rank: int | None
    candidate: LogicalTensor | None
    reference: LogicalTensor | None
    unlike: bool = False

    @property
    def both(self) -> tuple[LogicalTensor, LogicalTensor]:
        """Return the pair's candidate and reference tensors, of which neither may be missing."""
        assert self.candidate is not None
        assert self.reference is not None
        return self.candidate, self.reference

    @property
    def tensors(self) -> tuple[Tensor, Tensor] | None:
        """Return both full tensors `with_values`; None if a run lacks it or its full values."""
        if self.candidate is None or self.reference is None:
            return None
        ours, theirs = self.candidate.tensor, self.reference.tensor
        return None if ours is None or theirs is None else with_values(ours, theirs)

    @property
    def is_alike(self) -> bool:
        """Whether candidate and reference both have the tensor, with the same bytes."""
        ours, theirs = self.candidate, self.reference
        return ours is not None and theirs is not None and ours.same_bytes(theirs)


def common_moments(candidate: Trace, reference: Trace) -> list[tuple[Moment, Moment]]:
    """Return the matching points of both runs, such as step 2 after backward, in order.

    If both ran the same operations, every moment has a partner. If they ran different ones
    (train-eval-train against train-only), the start and the train steps have one, and so has the
    end if both end with a train step.

    Raises:
        RecordingError: if one side trains more steps than the other.
    """
    if candidate.moments == reference.moments:
        return list(zip(candidate.moments, reference.moments, strict=True))
    ours, theirs = (
        {(m.step, m.phase): m for m in side.moments if m.operation in ("init", "train")}
        for side in (candidate, reference)
    )
    if {key for key in ours.keys() ^ theirs.keys() if key[1] != END}:
        raise RecordingError(
            f"expected both sides to train the same steps but the candidate trains "
            f"{max(step for step, _ in ours)} and the reference {max(step for step, _ in theirs)}; "
            "record both for the same steps"
        )
    return [(moment, theirs[key]) for key, moment in ours.items() if key in theirs]


def align(
    candidate: Trace,
    reference: Trace,
    moments: tuple[Moment, Moment],
    left_out: frozenset[str] = frozenset(),
) -> Iterator[Pair]:
    """Yield each tensor of one moment from both runs, in the order in which a step computes them.

    Args:
        candidate: one side.
        reference: the other.
        moments: two that belong together, from `common_moments`.
        left_out: kinds that are not compared.
    """
    ours = pieces_by_tensor(candidate, moments[0], left_out)
    theirs = pieces_by_tensor(reference, moments[1], left_out)
    keys = [*ours, *(key for key in theirs if key not in ours)]
    local_keys = {key[:2] for key in keys if key[2] is not None}
    shared = {key[:2] for key in keys if key[2] is None}
    for kind, name, rank in sorted(keys, key=lambda key: causal_rank(key[0])):
        key = kind, name, rank
        yield Pair(
            moments[0],
            kind,
            name,
            rank,
            assemble(candidate, ours[key]) if key in ours else None,
            assemble(reference, theirs[key]) if key in theirs else None,
            (kind, name) in local_keys & shared,
        )


def pieces_by_tensor(
    trace: Trace, moment: Moment, left_out: frozenset[str]
) -> dict[tuple[str, str, int | None], list[Entry]]:
    """Group the pieces that ranks recorded at one moment by the tensor that they belong to."""
    tensors: dict[tuple[str, str, int | None], list[Entry]] = {}
    for entry in trace.entries(moment):
        if entry.kind not in left_out:
            key = entry.kind, entry.name, entry.rank if entry.local else None
            tensors.setdefault(key, []).append(entry)
    return tensors


def assemble(trace: Trace, pieces: list[Entry]) -> LogicalTensor:
    """Join the pieces that ranks recorded of one tensor, or say why they do not form a whole.

    A tensor that every rank holds whole is not copied.
    """
    entries = tuple(pieces)
    first, *others = pieces
    for other in others:
        if (other.dtype, other.shape) != (first.dtype, first.shape):
            text = (
                f"rank {other.rank} has {other.dtype}{list(other.shape)}, "
                f"rank {first.rank} {first.dtype}{list(first.shape)}"
            )
            return LogicalTensor(trace, entries, Fault("pieces", text, other.rank))
    if all(piece.place == first.place for piece in others) and first.piece == first.shape:
        return _replicas(trace, entries)
    return _shards(trace, entries)


def _replicas(trace: Trace, pieces: tuple[Entry, ...]) -> LogicalTensor:
    first = pieces[0]
    for piece in pieces[1:]:
        if not trace.same_bytes(piece, trace, first):
            difference = None
            if not piece.digest:
                difference = compare(trace.tensor(piece), trace.tensor(first), Bitwise())
            text = f"rank {piece.rank} and rank {first.rank} hold different bits"
            return LogicalTensor(trace, pieces, Fault("replicas", text, piece.rank, difference))
    return LogicalTensor(trace, pieces)


def _shards(trace: Trace, pieces: tuple[Entry, ...]) -> LogicalTensor:
    first = pieces[0]
    if first.local and first.digest and len(pieces) == 1:  # of several, one digest proves nothing
        return LogicalTensor(trace, pieces)
    dtype = getattr(torch, first.dtype)
    size = math.prod(first.shape)
    sizes = {piece.place: math.prod(piece.piece) for piece in pieces}
    lacking = size - sum(sizes.values())
    # Before asking for memory: a stranger's recording may name any shape.
    if lacking > (1 - LEAST_PART) * size * first.local:
        text = f"no rank holds {lacking} of {size} elements"
        return LogicalTensor(trace, pieces, Fault("uncovered", text))
    # As integers: not every dtype can be indexed, and no conversion may touch the bits.
    whole = torch.zeros(first.shape, dtype=MOVED_AS[dtype.itemsize])
    covered = torch.zeros(first.shape, dtype=torch.bool)
    for piece in pieces:
        tensor = trace.tensor(piece).view(whole.dtype)
        target, mask = region(whole, piece), region(covered, piece)
        if target.shape != tensor.shape:
            text = f"rank {piece.rank} says that {list(piece.piece)} lies at {piece.place}"
            fault = Fault("pieces", f"{text} of {list(piece.shape)}", piece.rank)
            return LogicalTensor(trace, pieces, fault)
        if mask.any():
            difference = compare(tensor[mask].view(dtype), target[mask].view(dtype), Bitwise())
            if difference is not None:
                text = f"rank {piece.rank} holds other bits than a lower rank"
                return LogicalTensor(trace, pieces, Fault("replicas", text, piece.rank, difference))
        target.copy_(tensor)
        mask.fill_(True)
    missing = covered.numel() - int(covered.count_nonzero())
    if missing and not first.local:
        text = f"no rank holds {missing} of {covered.numel()} elements"
        return LogicalTensor(trace, pieces, Fault("uncovered", text))
    return LogicalTensor(trace, pieces, joined=whole.view(dtype))


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
