"""Lay out what a rank has observed as a table of numbers, and read it back.

The table follows the bytes of tensors in the rank's file: rows (`ROW`) of all moments in their
order, then slots (`SLOT`). The index names what their numbers mean: kinds, names and forms, each
once. So an index of 10,000 tensors is as long as their names, whatever the number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pytest_precision.engine.observation import Chunk, Place, Span
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.rank_rows import NO_ROWS, ROW, Rows, TensorSlot

SLOT = np.dtype([("kind", "<u4"), ("name", "<u4"), ("form", "<u4")])
"""Numbers of a slot's kind, name and form in the index."""

TABLE_KEYS = ("kinds", "names", "forms", "slots", "moments", "table")
"""Keys of an index that describe the table."""


class LaidOut(NamedTuple):
    """A table that is to be written, and what the index says of it.

    Attributes:
        index_keys: the values of all `TABLE_KEYS` but `table`, its offset in the file.
        content: the bytes.
    """

    index_keys: dict[str, Any]
    content: bytes


def laid_out(slots: Collection[TensorSlot], moments: Mapping[Moment, Rows]) -> LaidOut:
    """Return the table of one rank's observations, as bytes and an index."""
    kinds: dict[str, int] = {}
    names: dict[str, int] = {}
    forms: dict[tuple[Any, ...], int] = {}
    numbers = [
        (
            kinds.setdefault(slot.kind, len(kinds)),
            names.setdefault(slot.name, len(names)),
            forms.setdefault(slot[2:-1], len(forms)),
        )
        for slot in slots
    ]
    index = {
        "kinds": [*kinds],
        "names": [*names],
        "forms": [
            (dtype, piece, shape, _plain(place), local)
            for dtype, piece, shape, place, local in forms
        ],
        "slots": len(numbers),
        "moments": [(*moment, len(rows)) for moment, rows in moments.items()],
    }
    rows = np.concatenate([NO_ROWS, *moments.values()])
    return LaidOut(index, rows.tobytes() + np.array(numbers, SLOT).tobytes())


class Table(NamedTuple):
    """A table as it lies in a file.

    Attributes:
        moments: each with the number of its rows.
        rows: of all moments.
        slots: numbers of kinds, names and forms.
    """

    moments: list[tuple[Moment, int]]
    rows: Rows
    slots: npt.NDArray[Any]


def table_in(index: Mapping[str, Any], content: Tensor) -> Table:
    """Return the table that an index describes, as views of the file's bytes.

    Raises:
        ValueError: the file is too short.
    """
    moments = [(Moment(*moment), rows) for *moment, rows in index["moments"]]
    number = sum(rows for _, rows in moments)
    rows = np.frombuffer(content.numpy(), ROW, number, index["table"])
    after = index["table"] + number * ROW.itemsize
    return Table(moments, rows, np.frombuffer(content.numpy(), SLOT, index["slots"], after))


def observed_in(
    index: Mapping[str, Any], table: Table
) -> tuple[list[TensorSlot], dict[Moment, Rows]]:
    """Return the slots of a table, and the rows of each moment."""
    kinds, names = index["kinds"], index["names"]
    forms = [_form(*form) for form in index["forms"]]
    slots = [
        TensorSlot(kinds[kind], names[name], *forms[form])
        for kind, name, form in table.slots.tolist()
    ]
    ends = [*accumulate((rows for _, rows in table.moments), initial=0)]
    return slots, {
        moment: table.rows[start : start + rows]
        for (moment, rows), start in zip(table.moments, ends, strict=False)
    }


def _form(
    dtype: str, piece: Sequence[int], shape: Sequence[int], place: Sequence[Any], local: bool
) -> tuple[Any, ...]:
    """Return the fields of a slot after its kind and name."""
    nbytes = math.prod(piece) * getattr(torch, dtype).itemsize
    return dtype, tuple(piece), tuple(shape), stored_place(place, piece), local, nbytes


def stored_place(words: Sequence[Any], piece: Sequence[int]) -> Place:
    """Return the place of a piece of this shape, as an index says it."""
    kind, *starts = words
    if kind == "chunk":
        return Chunk(tuple(starts), tuple(piece))
    (first,) = starts
    return Span(first, first + math.prod(piece))


def _plain(place: Place) -> Any:
    return ("chunk", *place.offsets) if isinstance(place, Chunk) else ("span", place.start)
