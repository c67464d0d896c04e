"""Store what a rank has recorded so far, so that it can be read although the rank is killed.

The index of a trace is written last. Until then the rank adds a block to its journal whenever what
a train step has shown can change no more, and removes the journal once its files are whole. A block
says which bytes of the rank's file it covers, and has digests of them and of itself: what was cut
off, or never reached the disk, ends the part that counts.
"""

from __future__ import annotations

import ctypes
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from pytest_precision.errors import expected_but_got
from pytest_precision.trace.digests import bytes_of
from pytest_precision.trace.files import mapped, regular
from pytest_precision.trace.moment import END, Moment
from pytest_precision.trace.rank_origin import RankOrigin
from pytest_precision.trace.rank_rows import ROW, Rows, TensorSlot
from pytest_precision.trace.row_table import SLOT, laid_out

_FRAME = struct.Struct("<QQ")
"""Begins a block: bytes of its JSON, and of its rows and slots behind them."""

_DIGEST_BYTES = 16


def journal_path(folder: Path, rank: int) -> Path:
    """Return the path of the temporary file with what a rank has recorded so far."""
    return folder / f"rank{rank}.journal"


class Journal:
    """Appends what one rank has recorded to its journal, block by block.

    Args:
        folder: of the recording.
        rank: rank of this process.
        origin: of this rank's files.

    Raises:
        FileExistsError: the folder has a journal of this rank.
        OSError: it cannot be written.
    """

    def __init__(self, folder: Path, rank: int, origin: RankOrigin) -> None:
        self._file = open(journal_path(folder, rank), "xb")  # noqa: SIM115, closed by `close`
        self._covered = 0
        self._content = xxhash.xxh3_128()
        self._slots = self._moments = 0
        self._put({"origin": origin._asdict()})

    def cover(self, *contents: bytes | ctypes.Array[ctypes.c_char]) -> None:
        """Count bytes that were added to the rank's file."""
        for content in contents:
            self._covered += len(content)
            self._content.update(content)

    def lacks(self, moments: Mapping[Moment, Rows]) -> bool:
        """Return whether some of a trace's moments are in no block yet."""
        return len(moments) > self._moments

    def add(
        self,
        index: Mapping[str, Any],
        slots: Mapping[TensorSlot, int],
        moments: Mapping[Moment, Rows],
    ) -> None:
        """Append a block with the observations of the trace since the last block.

        Args:
            index: what the trace's index says so far, without its table.
            slots: those of the trace, in the order of their numbers.
            moments: those of the trace, in their order, with rows that no longer change.

        Raises:
            OSError: it cannot be written.
        """
        new_slots = [*islice(slots, self._slots, None)]
        new_moments = dict(islice(moments.items(), self._moments, None))
        table = laid_out(new_slots, new_moments)
        covered = {"covered": self._covered, "content": self._content.hexdigest()}
        self._put({"index": {**index}, **covered, **table.index_keys}, table.content)
        self._slots, self._moments = len(slots), len(moments)

    def end(self, words: str) -> None:
        """Append the error that ended the run before its last step, and close the file.

        Raises:
            OSError: it cannot be written.
        """
        try:
            self._put({"ended": words})
        finally:
            self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _put(self, facts: dict[str, Any], table: bytes = b"") -> None:
        said = json.dumps(facts).encode()
        block = _FRAME.pack(len(said), len(table)) + said + table
        self._file.write(block + xxhash.xxh3_128_digest(block))
        self._file.flush()


@dataclass(frozen=True)
class Journaled:
    """What a rank has left that has not finished: its whole steps, as if it had ended with them.

    Attributes:
        origin: of the files.
        steps: number of whole train steps.
        index: what the rank's index would say; empty where there is no whole step.
        content: the bytes that the rank's file would have.
        ended: what ended the run, in its own words; empty if nothing could be said, as by a rank
            that was killed.
    """

    origin: RankOrigin
    steps: int
    index: dict[str, Any]
    content: Tensor
    ended: str


def read_journal(folder: Path, rank: int) -> Journaled:
    """Read the journal of an unfinished rank, up to the first incomplete block.

    Raises:
        FileNotFoundError: it has no journal.
        ValueError: it says what cannot be; what it says of tensors is not looked at.
    """
    path = journal_path(folder, rank)
    with regular(path) as (file, size):
        blocks = [*_blocks(mapped(file, size).numpy().tobytes())]
    if not blocks:
        got = f"{size} bytes without one"
        raise ValueError(expected_but_got(f"a block in {path.name}", got))
    origin = RankOrigin.sound(blocks[0][0]["origin"])
    with regular(folder / f"rank{rank}.bin") as (file, size):
        content = mapped(file, size)
    steps = [*_covering(blocks, content)]
    ended = next((facts["ended"] for facts, _ in blocks if "ended" in facts), "")
    if not steps:
        return Journaled(origin, 0, {}, torch.empty(0, dtype=torch.uint8), str(ended))
    number = int(steps[-1][0]["moments"][-1][2])
    index, table = _one_table(steps, number)
    covered_tensor = content[: int(steps[-1][0]["covered"])]
    index["table"] = len(covered_tensor)
    written_tensor = torch.cat(
        [covered_tensor, torch.frombuffer(bytearray(table), dtype=torch.uint8)]
    )
    return Journaled(origin, number, index, written_tensor, str(ended))


def _blocks(content: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield the facts and the table of each block, up to the first that is not whole."""
    start = 0
    while start + _FRAME.size <= len(content):
        said, table = _FRAME.unpack_from(content, start)
        middle = start + _FRAME.size + said
        end = middle + table
        if content[end : end + _DIGEST_BYTES] != xxhash.xxh3_128_digest(content[start:end]):
            return
        yield json.loads(content[start + _FRAME.size : middle]), content[middle:end]
        start = end + _DIGEST_BYTES


def _covering(
    blocks: list[tuple[dict[str, Any], bytes]], content: Tensor
) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield the blocks of steps whose bytes are in the rank's file as they were written."""
    state = xxhash.xxh3_128()
    covered = 0
    for facts, table in blocks:
        if "moments" not in facts:
            continue
        state.update(bytes_of(content[covered : facts["covered"]]))
        covered = facts["covered"]
        if covered > len(content) or state.hexdigest() != facts["content"]:
            return
        yield facts, table


def _one_table(
    blocks: list[tuple[dict[str, Any], bytes]], steps: int
) -> tuple[dict[str, Any], bytes]:
    """Return the index and the table that a rank would have written after its last whole step.

    A block numbers its kinds, names and forms from 0, and its slots after those before it.
    """
    kinds: list[Any] = []
    names: list[Any] = []
    forms: list[Any] = []
    moments: list[Any] = []
    rows, slots = [], []
    for facts, table in blocks:
        number = sum(moment[-1] for moment in facts["moments"])
        rows.append(np.frombuffer(table, ROW, number))
        of_block = np.frombuffer(table, SLOT, facts["slots"], number * ROW.itemsize).copy()
        for column, words in (("kind", kinds), ("name", names), ("form", forms)):
            of_block[column] += len(words)
        slots.append(of_block)
        kinds += facts["kinds"]
        names += facts["names"]
        forms += facts["forms"]
        moments += facts["moments"]
    moments.append([steps - 1, "train", steps, END, 0])
    index = blocks[-1][0]["index"]
    index |= {"kinds": kinds, "names": names, "forms": forms, "moments": moments}
    all_slots = np.concatenate(slots)
    index["slots"] = len(all_slots)
    return index, np.concatenate(rows).tobytes() + all_slots.tobytes()
