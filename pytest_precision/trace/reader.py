"""Read a trace: an index and a file of bytes for each rank and each part of the run.

A trace holds values, or digests: the states of a long run are too large to keep, and 16 bytes per
tensor tell whether two runs diverge, and when. The index is written last and moved into place, so
that a trace without all of its indices is no trace. Values are read as copy-on-write memory maps.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pytest_precision.engine.observation import Place
from pytest_precision.engine.values import described
from pytest_precision.errors import expected_but_got
from pytest_precision.trace.digests import kept_as_it_is, memcmp
from pytest_precision.trace.files import OWN_FILES, TraceFiles
from pytest_precision.trace.format_2 import is_of_format_2, observed_in_format_2
from pytest_precision.trace.header import header_in, joined_header, rank_place_of
from pytest_precision.trace.lin8_sums import DigestedPart
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.named_digests import (
    XXH3,
    adds_up,
    digest_name_of_kind,
    named_digests,
)
from pytest_precision.trace.rank_rows import KindRows, RankRows, TensorSlot
from pytest_precision.trace.row_table import observed_in, table_in
from pytest_precision.trace.segment_folders import holders


class Entry(NamedTuple):
    """One observation in a trace on disk, with where its bytes lie.

    Attributes:
        kind, name, shape, place, local: see `Observation`.
        dtype: name of the dtype, without `torch.`.
        piece: shape of the piece.
        nbytes: number of bytes of the piece.
        rank: the rank that holds it.
        offset: offset of its bytes in the rank's file, None where only a digest was kept.
        digest: of its bytes in row-major order, hexadecimal, see `Header.digest`; empty where the
            bytes were kept.
        file: number of the file that holds it, among those of all segments and ranks.
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
    file: int = 0


class Trace:
    """All observations of a run, read from a folder, in causal order.

    Args:
        folder: folder of the trace.
        world_sizes: number of ranks of each segment that was recorded, at least of the first.
        files: reads them; those that this session has written unless given.

    Attributes:
        folder, world_sizes, files: as given.
        header: what holds for the whole trace.
        moments: all moments, in causal order.
        places: where each rank of the first segment ran, as far as its header says.

    Raises:
        FileNotFoundError: for a trace that was not finished on every rank.
    """

    def __init__(self, folder: Path, *world_sizes: int, files: TraceFiles = OWN_FILES) -> None:
        self.folder = folder
        self.world_sizes = world_sizes
        self.files = files
        headers = []
        self._written = []
        for number, place, rank in holders(folder, world_sizes):
            index = files.data(place / f"rank{rank}.json")
            headers.append(header_in(index))
            data = files.bytes(place / f"rank{rank}.bin")
            slots, moments = (
                observed_in_format_2(index)
                if is_of_format_2(index)
                else observed_in(index, table_in(index, data))
            )
            starts = index.get("starts", {})  # earlier releases write none
            self._written.append(RankRows(number, rank, slots, moments, data, starts))
        self.header = joined_header(headers)
        self.places = [rank_place_of(*ranked) for ranked in enumerate(headers[: world_sizes[0]])]
        of_rank_0 = [part for part in self._written if part.rank == 0]
        self._segment = {moment: part.number for part in of_rank_0 for moment in part.moments}
        self.moments = tuple(self._segment)

    def later(self, step: int, kinds: Collection[str]) -> Trace:
        """Return the trace of the train steps from `step` on, as the trace of a run of their own.

        It begins with the state that the step before has left.

        Args:
            step: number of the step that is to be step 1; of a recording, in which each step is an
                operation.
            kinds: those of its start.
        """
        part = copy.copy(self)
        part._written = [written.later(step, kinds) for written in self._written]
        part._segment = dict.fromkeys(part._written[0].moments, 0)
        part.moments = tuple(part._segment)
        return part

    def until(self, step: int) -> Trace:
        """Return the trace of the train steps up to `step`, without the state at the end."""
        part = copy.copy(self)
        part._written = [written.until(step) for written in self._written]
        part._segment = dict.fromkeys(part._written[0].moments, 0)
        part.moments = tuple(part._segment)
        return part

    def world_size_at(self, moment: Moment) -> int:
        """Return the number of ranks that ran at this moment of the sequence."""
        return self.world_sizes[self._segment[moment]]

    def rank_in_words(self, rank: int) -> str:
        """Return `rank 1`, with host and device where the ranks ran on several hosts."""
        several = len({place.host for place in self.places}) > 1
        return str(self.places[rank]) if several else f"rank {rank}"

    def segments(self) -> list[list[Moment]]:
        """Return, for each part of the run between restarts, the moments that it recorded."""
        numbers = range(len(self.world_sizes))
        return [[m for m in self.moments if self._segment[m] == number] for number in numbers]

    def entries(self, moment: Moment, kinds: Collection[str] | None = None) -> Iterator[Entry]:
        """Yield the observations of all ranks at one moment, in rank order.

        Args:
            moment: when.
            kinds: of which tensors; of all unless given.
        """
        for file, part in enumerate(self._written):
            slots, rank = part.slots, part.rank
            for slot, digested, first, second in part.at(moment, kinds).tolist():
                where = (None, f"{first:016x}{second:016x}") if digested else (first, "")
                yield Entry._make((*slots[slot], rank, *where, file))

    def kinds_at(self, moment: Moment, *, digested: bool = False) -> set[str]:
        """Return the kinds of tensors that any rank has observed at a moment.

        Args:
            moment: when.
            digested: whether to look only at tensors of which digests were kept.
        """
        return {kind for part in self._written for kind in part.kinds_at(moment, digested=digested)}

    def rows_at(self, moment: Moment, kind: str) -> KindRows:
        """Return the observations of a kind by all ranks at one moment, in rank order, as rows."""
        parts = [
            part.of_kind(moment, kind, before)
            for part, before in zip(self._written, self._slots_before, strict=True)
            if moment in part.moments
        ]
        return KindRows(*map(np.concatenate, zip(*parts, strict=True)))

    def slots_of(self, numbers: npt.NDArray[np.int64]) -> Iterator[tuple[TensorSlot, int]]:
        """Yield slot and rank for each number of a slot among those of all ranks."""
        files = np.searchsorted(self._slots_before, numbers, "right") - 1
        for number, file in zip(numbers.tolist(), files.tolist(), strict=True):
            part = self._written[file]
            yield part.slots[number - self._slots_before[file]], part.rank

    @cached_property
    def _slots_before(self) -> list[int]:
        """Return how many slots there are before those of each file."""
        return [0, *accumulate(len(part.slots) for part in self._written)][:-1]

    def held(
        self, moment: Moment, kinds: Collection[str]
    ) -> Mapping[str, Mapping[str, list[Entry]]]:
        """Return all ranks' observations at one moment, of given kinds, by kind and name."""
        by_kind: dict[str, dict[str, list[Entry]]] = defaultdict(lambda: defaultdict(list))
        for entry in self.entries(moment, kinds):
            by_kind[entry.kind][entry.name].append(entry)
        return by_kind

    def starts(self) -> dict[tuple[str, str, int], str]:
        """Return the first values of tensors that are shown only after they change, as text.

        Returns:
            kind, name and rank to the words of `described`.
        """
        return {
            (kind, name, part.rank): start
            for part in self._written
            if part.number == 0
            for kind, named in part.starts.items()
            for name, start in named.items()
        }

    def described(self, entry: Entry) -> str:
        """Return dtype, shape and digest of an observation, in the words of `starts`."""
        return described(entry.dtype, entry.piece, self.digest_of(entry, XXH3))

    def dtypes(self) -> dict[str, dict[str, str]]:
        """Return the dtype of every tensor, by kind and then by name."""
        return self._dtypes

    @cached_property
    def _dtypes(self) -> dict[str, dict[str, str]]:
        by_kind: dict[str, dict[str, str]] = {}
        for part in self._written:
            for slot in part.slots:
                by_kind.setdefault(slot.kind, {}).setdefault(slot.name, slot.dtype)
        return by_kind

    def local_kinds(self) -> set[str]:
        """Return the kinds of tensors of which every rank has its own, not a shard."""
        return {slot.kind for part in self._written for slot in part.slots if slot.local}

    @property
    def decisive(self) -> bool:
        """Return whether each tensor has values or digests to compare by, whoever holds a shard."""
        return (not self.header.digests or adds_up(self.header.digest)) or all(
            slot.piece == slot.shape or kept_as_it_is(slot.kind, slot.nbytes)
            for part in self._written
            for slot in part.slots
        )

    def tensor(self, entry: Entry) -> Tensor:
        """Return an observation's values, a view of the memory-mapped file.

        Raises:
            ValueError: only a digest was kept.
        """
        if entry.offset is None:
            got = f"a digest of {entry.kind} {entry.name!r} on rank {entry.rank}"
            raise ValueError(expected_but_got("values", got))
        flat = self._written[entry.file].data[entry.offset : entry.offset + entry.nbytes]
        return flat.view(getattr(torch, entry.dtype)).view(entry.piece)

    def same_bytes(self, entry: Entry, other: Trace, theirs: Entry) -> bool:
        """Return whether two observations of one place have equal bytes, by digest or in memory.

        Raises:
            ValueError: digests of another name were kept of the other one.
        """
        if entry.nbytes != theirs.nbytes:
            return False
        if entry.digest or theirs.digest:
            name = (self if entry.digest else other).digest_name(entry.kind)
            return self.digest_of(entry, name) == other.digest_of(theirs, name)
        assert entry.offset is not None
        assert theirs.offset is not None
        address = self._written[entry.file].data.data_ptr() + entry.offset
        other_address = other._written[theirs.file].data.data_ptr() + theirs.offset
        return bool(memcmp(address, other_address, entry.nbytes) == 0)

    def digest_name(self, kind: str) -> str:
        """Return the name of the digests of a kind of tensors."""
        return digest_name_of_kind(self.header.digest, kind)

    def digest_of(self, entry: Entry, name: str) -> str:
        """Return the digest of an observation, computed from the values if none is stored.

        Args:
            entry: the observation.
            name: of the digest.

        Raises:
            ValueError: one of another name is stored.
        """
        if not entry.digest:
            part = DigestedPart(self.tensor(entry), entry.shape, entry.place)
            return named_digests(name, [part])[0]
        if self.digest_name(entry.kind) != name:
            got = f"{self.digest_name(entry.kind)} of {entry.kind} {entry.name!r}"
            raise ValueError(expected_but_got(f"a digest {name}", got))
        return entry.digest
