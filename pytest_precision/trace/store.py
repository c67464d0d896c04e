"""A trace at rest: for each rank a file of bytes and an index of what lies where in it.

A trace holds values, or digests: of a long run nobody can keep every state, and 16 bytes a tensor
say whether two runs part, and when. The index is written last and moved into place, so that a trace
without all of its indices is no trace. Values are read back as copy-on-write memory maps.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash
from torch import Tensor

from pytest_precision.engine.observation import Chunk, Observation, Place, Span, cloned
from pytest_precision.engine.readable import expect_readable
from pytest_precision.trace.moment import Moment

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

ALIGNMENT = 64
"""Bytes that each tensor's offset is a multiple of, so that any dtype can be viewed in place."""

SMALL = 64
"""Bytes up to which a tensor is kept as it is: a digest and its place would take as much."""

LARGE = 8 << 20
"""Bytes a tensor from which on two threads are faster than one; xxhash lets go of the interpreter's
lock while it reads."""

READ = frozenset({"loss", "grad_norm"})
"""Kinds whose values say whether a run proves anything; they are kept whatever their size."""


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
    """One observation at rest.

    Attributes:
        kind, name, shape, place, local: as of `Observation`.
        dtype: without `torch.`.
        piece: shape of the piece.
        nbytes: of the piece.
        rank: that holds it.
        offset: of its bytes in the rank's file, None where only a digest was kept.
        digest: xxh3-128 of its bytes in row-major order, hexadecimal; empty where the bytes were.
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
        paths: of `contract.PATHS`, that the engine has taken.
        breaches: what it stored otherwise than its layout promises, on this rank or another.
        products: dtypes of the matrix products that were seen, on this rank or another.
    """

    world_size: int
    unobservable: dict[str, str]
    environment: dict[str, str]
    digests: bool = False
    paths: tuple[str, ...] = ()
    breaches: tuple[str, ...] = ()
    products: tuple[str, ...] = ()


class TraceWriter:
    """Writes one rank's part of a trace into `folder`.

    Args:
        folder: an existing one.
        rank: of this process.
        digests: as of `Header`.
        threads: that digests are computed on.
    """

    def __init__(self, folder: Path, rank: int, *, digests: bool = False, threads: int = 1) -> None:
        self._index = folder / f"rank{rank}.json"
        self._digests = digests
        self._file = open(folder / f"rank{rank}.bin", "wb")  # noqa: SIM115, closed by __exit__
        self._end = 0
        self._threads, self._pool = threads, ThreadPoolExecutor(threads)
        self._moments: list[tuple[Moment, list[tuple[int, int | str]]]] = []
        self._slots: dict[TensorKey, int] = {}

    def add(self, moment: Moment, observations: Iterable[Observation]) -> None:
        """Keep what was observed at `moment`; a tensor observed twice is kept once."""
        kept: dict[tuple[Any, ...], int | str] = {}
        entries: list[tuple[int, tuple[Any, ...]]] = []
        # Keeps every tensor alive until the moment ends: an address that was freed and used again
        # would make two tensors look like one.
        alive: list[Tensor] = []
        to_digest: dict[tuple[Any, ...], Tensor] = {}
        for seen in observations:
            tensor = seen.tensor.detach()
            if not seen.digest:
                expect_readable(seen.kind, seen.name, tensor)
            alive.append(tensor)
            identity = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), seen.digest)
            nbytes = tensor.numel() * tensor.element_size()
            if seen.digest:
                kept[identity] = seen.digest
            elif self._digests and not _kept_as_it_is(seen.kind, nbytes):
                to_digest[identity] = tensor
            elif identity not in kept:
                kept[identity] = self._write(tensor)
            slot = TensorKey(
                seen.kind,
                seen.name,
                str(tensor.dtype).removeprefix("torch."),
                tuple(tensor.shape),
                seen.shape,
                seen.place,
                seen.local,
                nbytes,
            )
            entries.append((self._slots.setdefault(slot, len(self._slots)), identity))
        kept.update(zip(to_digest, self._all_digests([*to_digest.values()]), strict=True))
        self._moments.append((moment, [(slot, kept[identity]) for slot, identity in entries]))

    @property
    def observations(self) -> int:
        """Number of observations so far."""
        return sum(len(entries) for _, entries in self._moments)

    def _all_digests(self, tensors: list[Tensor]) -> Iterator[str]:
        """Of each tensor; on threads only where there is more to read than to hand out."""
        nbytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if self._threads > 1 and nbytes > LARGE * len(tensors):
            return self._pool.map(digest, tensors)
        return map(digest, tensors)

    def _write(self, tensor: Tensor) -> int:
        start = -(-self._end // ALIGNMENT) * ALIGNMENT
        self._file.write(b"\0" * (start - self._end))
        held = _in_order(tensor)
        self._end = start + self._file.write(bytes_of(held))
        return start

    def close(self, header: Header) -> None:
        """Finish the trace: from now on it is whole."""
        self._file.close()
        slots = [slot._replace(place=_plain(slot.place)) for slot in self._slots]
        index = (
            asdict(header) | {"digests": self._digests} | {"slots": slots, "moments": self._moments}
        )
        partial = self._index.with_suffix(".partial")
        partial.write_text(json.dumps(index))
        os.replace(partial, self._index)

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pool.shutdown()
        self._file.close()


class Trace:
    """All observations of one run, in causal order of their moments, read from `folder`.

    Attributes:
        folder: where the trace lies.
        header: what holds for all of it.
        moments: in causal order.

    Raises:
        FileNotFoundError: for a trace that was not finished on every rank.
    """

    def __init__(self, folder: Path, world_size: int) -> None:
        indices = [
            json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(world_size)
        ]
        self.folder = folder
        found = dict.fromkeys(words for index in indices for words in index["breaches"])
        header = Header(*(indices[0][name] for name in Header.__dataclass_fields__))
        products = {dtype for index in indices for dtype in index["products"]}
        self.header = replace(
            header,
            paths=tuple(header.paths),
            breaches=tuple(found),
            products=tuple(sorted(products)),
        )
        self.moments = tuple(Moment(*moment) for moment, _ in indices[0]["moments"])
        self._slots = [[_slot(fields) for fields in index["slots"]] for index in indices]
        self._entries = [[entries for _, entries in index["moments"]] for index in indices]
        self._number = {moment: number for number, moment in enumerate(self.moments)}
        self._bytes = [_map(folder / f"rank{rank}.bin") for rank in range(world_size)]

    def entries(self, moment: Moment) -> Iterator[Entry]:
        """What was observed at `moment`, rank by rank in each rank's order."""
        number = self._number[moment]
        for rank, (slots, moments) in enumerate(zip(self._slots, self._entries, strict=True)):
            for slot, kept in moments[number]:
                where = (kept, "") if isinstance(kept, int) else (None, kept)
                yield Entry._make((*slots[slot], rank, *where))

    def dtypes(self) -> dict[str, dict[str, str]]:
        """Kind of observation to name to dtype."""
        held: dict[str, dict[str, str]] = {}
        for slots in self._slots:
            for slot in slots:
                held.setdefault(slot.kind, {}).setdefault(slot.name, slot.dtype)
        return held

    def local_kinds(self) -> set[str]:
        """The kinds of which every rank has a tensor of its own."""
        return {slot.kind for slots in self._slots for slot in slots if slot.local}

    @property
    def decisive(self) -> bool:
        """Whether all that differs can be seen: a digest of a mere piece has no counterpart."""
        return not self.header.digests or all(
            slot.piece == slot.shape or _kept_as_it_is(slot.kind, slot.nbytes)
            for slots in self._slots
            for slot in slots
        )

    def tensor(self, entry: Entry) -> Tensor:
        """The piece of one rank, of shape `entry.piece`: a view of the file, not to be written."""
        assert entry.offset is not None
        flat = self._bytes[entry.rank][entry.offset : entry.offset + entry.nbytes]
        return flat.view(getattr(torch, entry.dtype)).view(entry.piece)

    def same_bytes(self, entry: Entry, other: Trace, theirs: Entry) -> bool:
        """Whether two observations have the same bytes, without making tensors of them."""
        if entry.nbytes != theirs.nbytes or entry.digest or theirs.digest:
            return entry.nbytes == theirs.nbytes and entry.digest == theirs.digest
        assert entry.offset is not None
        assert theirs.offset is not None
        here = self._bytes[entry.rank].data_ptr() + entry.offset
        there = other._bytes[theirs.rank].data_ptr() + theirs.offset
        return bool(_memcmp(here, there, entry.nbytes) == 0)


def digest(tensor: Tensor) -> str:
    """xxh3-128 of the bytes in row-major order, hexadecimal: any order, sign or position counts."""
    return xxhash.xxh3_128_hexdigest(bytes_of(_in_order(tensor.detach())))


def _in_order(tensor: Tensor) -> Tensor:
    """Return it with its bytes in row-major order; a conjugate may be a mere mark on others."""
    return tensor.cpu().resolve_conj().resolve_neg().contiguous()


def digested(seen: Observation) -> Observation:
    """`seen` as a trace of digests keeps it, whatever becomes of the tensor afterwards."""
    if _kept_as_it_is(seen.kind, seen.tensor.numel() * seen.tensor.element_size()):
        return cloned(seen)
    return replace(seen, tensor=seen.tensor.to("meta"), digest=digest(seen.tensor))


def _kept_as_it_is(kind: str, nbytes: int) -> bool:
    return nbytes <= SMALL or kind in READ


def bytes_of(held: Tensor) -> ctypes.Array[ctypes.c_char]:
    """Return the memory of a contiguous tensor on the CPU, which must outlive what is returned."""
    # Not through numpy(): that forbids the storage of an observed tensor to be resized, which FSDP2
    # does with its unsharded parameters.
    nbytes = held.numel() * held.element_size()
    return (ctypes.c_char * nbytes).from_address(held.data_ptr())


def _map(path: Path) -> Tensor:
    if path.stat().st_size == 0:  # which cannot be mapped
        return torch.empty(0, dtype=torch.uint8)
    return torch.from_numpy(np.memmap(path, dtype=np.uint8, mode="c"))


def _plain(place: Place) -> Any:
    return ("chunk", *place.offsets) if isinstance(place, Chunk) else ("span", place.start)


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
