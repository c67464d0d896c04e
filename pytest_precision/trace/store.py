"""A trace on disk: per rank, a file of bytes and an index of what lies where in it.

A trace holds values, or digests: the states of a long run are too large to keep, and 16 bytes per
tensor tell whether two runs diverge, and when. The index is written last and moved into place, so
that a trace without all of its indices is no trace. Values are read as copy-on-write memory maps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_precision.engine.observation import Chunk, Place, Span
from pytest_precision.trace.digests import digest, kept_as_it_is, memcmp
from pytest_precision.trace.files import mapped
from pytest_precision.trace.moment import Moment


class TensorKey(NamedTuple):
    """What the observations of one tensor at all moments have in common."""

    kind: str
    name: str
    dtype: str
    piece: tuple[int, ...]
    shape: tuple[int, ...]
    place: Place
    local: bool
    nbytes: int


class Entry(NamedTuple):
    """One observation on disk.

    Attributes:
        kind, name, shape, place, local: as of `Observation`.
        dtype: name of the dtype, without `torch.`.
        piece: shape of the piece.
        nbytes: number of bytes of the piece.
        rank: the rank that holds it.
        offset: offset of its bytes in the rank's file, None where only a digest was kept.
        digest: xxh3-128 of its bytes in row-major order, hexadecimal; empty where the bytes were
            kept.
    """

    kind: str
    name: str
    dtype: str
    piece: tuple[int, ...]
    shape: tuple[int, ...]
    place: Place
    local: bool
    nbytes: int
    rank: int
    offset: int | None
    digest: str


@dataclass(frozen=True)
class Header:
    """What holds for a whole trace.

    Attributes:
        world_size: number of ranks.
        unobservable: kinds that the engine cannot show, each with the reason.
        environment: what else decides about the bits: versions, threads, determinism.
        digests: whether digests were kept of what is larger than `SMALL`.
        paths: those of `contract.PATHS` that the engine has taken.
        violations: in words, what any rank stored otherwise than its layout promises.
        products: dtypes of the matrix products that were seen on any rank.
    """

    world_size: int
    unobservable: dict[str, str]
    environment: dict[str, str]
    digests: bool = False
    paths: tuple[str, ...] = ()
    violations: tuple[str, ...] = ()
    products: tuple[str, ...] = ()


class Trace:
    """All observations of one run, in causal order of their moments, read from `folder`.

    Attributes:
        folder: folder of the trace.
        header: what holds for the whole trace.
        moments: all moments, in causal order.

    Raises:
        FileNotFoundError: for a trace that was not finished on every rank.
    """

    def __init__(self, folder: Path, world_size: int) -> None:
        indices = [
            json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(world_size)
        ]
        self.folder = folder
        found = dict.fromkeys(words for index in indices for words in index["violations"])
        header = Header(*(indices[0][name] for name in Header.__dataclass_fields__))
        products = {dtype for index in indices for dtype in index["products"]}
        self.header = replace(
            header,
            paths=tuple(header.paths),
            violations=tuple(found),
            products=tuple(sorted(products)),
        )
        self.moments = tuple(Moment(*moment) for moment, _ in indices[0]["moments"])
        self._slots = [[_slot(fields) for fields in index["slots"]] for index in indices]
        self._entries = [[entries for _, entries in index["moments"]] for index in indices]
        self._number = {moment: number for number, moment in enumerate(self.moments)}
        self._bytes = [mapped(folder / f"rank{rank}.bin") for rank in range(world_size)]

    def expect_bytes(self) -> None:
        """Look at whether the files have all bytes that the indices name.

        Raises:
            ValueError: a file is too short.
        """
        for rank, (slots, moments) in enumerate(zip(self._slots, self._entries, strict=True)):
            kept = (entry for entries in moments for entry in entries)
            ends = (at + slots[slot].nbytes for slot, at in kept if isinstance(at, int))
            needed, there = max(ends, default=0), self._bytes[rank].numel()
            if there < needed:
                raise ValueError(f"rank{rank}.bin has {there} of {needed} bytes")

    def entries(self, moment: Moment) -> Iterator[Entry]:
        """Yield what was observed at `moment`, rank by rank in each rank's order."""
        number = self._number[moment]
        for rank, (slots, moments) in enumerate(zip(self._slots, self._entries, strict=True)):
            for slot, kept in moments[number]:
                where = (kept, "") if isinstance(kept, int) else (None, kept)
                yield Entry._make((*slots[slot], rank, *where))

    def dtypes(self) -> dict[str, dict[str, str]]:
        """Return kind of observation to name to dtype."""
        held: dict[str, dict[str, str]] = {}
        for slots in self._slots:
            for slot in slots:
                held.setdefault(slot.kind, {}).setdefault(slot.name, slot.dtype)
        return held

    def local_kinds(self) -> set[str]:
        """Return the kinds of which every rank has a tensor of its own."""
        return {slot.kind for slots in self._slots for slot in slots if slot.local}

    @property
    def decisive(self) -> bool:
        """Return whether every difference can be seen: a digest of a piece has no counterpart."""
        return not self.header.digests or all(
            slot.piece == slot.shape or kept_as_it_is(slot.kind, slot.nbytes)
            for slots in self._slots
            for slot in slots
        )

    def tensor(self, entry: Entry) -> Tensor:
        """Return the piece of one rank, in shape `entry.piece`; do not write to this view."""
        assert entry.offset is not None
        flat = self._bytes[entry.rank][entry.offset : entry.offset + entry.nbytes]
        return flat.view(getattr(torch, entry.dtype)).view(entry.piece)

    def same_bytes(self, entry: Entry, other: Trace, theirs: Entry) -> bool:
        """Return whether two observations have the same bytes, without making tensors of them."""
        if entry.nbytes != theirs.nbytes:
            return False
        if entry.digest or theirs.digest:
            return self._digest(entry) == other._digest(theirs)
        assert entry.offset is not None
        assert theirs.offset is not None
        here = self._bytes[entry.rank].data_ptr() + entry.offset
        there = other._bytes[theirs.rank].data_ptr() + theirs.offset
        return bool(memcmp(here, there, entry.nbytes) == 0)

    def _digest(self, entry: Entry) -> str:
        """Return the digest of an observation, also where its values were kept."""
        return entry.digest or digest(self.tensor(entry))


def _slot(fields: list[Any]) -> TensorKey:
    slot = TensorKey(*fields)
    piece = tuple(slot.piece)
    kind, *start = slot.place  # type: ignore[misc]
    place: Place
    if kind == "chunk":
        place = Chunk(tuple(start), piece)
    else:
        (first,) = start
        place = Span(first, first + math.prod(piece))
    return slot._replace(piece=piece, shape=tuple(slot.shape), place=place)
