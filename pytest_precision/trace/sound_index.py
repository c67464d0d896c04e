"""Validate the index of a rank's trace, and the table of numbers that it describes."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from pytest_precision.engine.engine import STEP_PHASES
from pytest_precision.trace.digests import may_be_digest
from pytest_precision.trace.moment import END, INIT
from pytest_precision.trace.named_digests import DIGEST_NAMES
from pytest_precision.trace.rank_rows import ROW, TensorSlot
from pytest_precision.trace.row_table import SLOT, TABLE_KEYS, Table, observed_in, table_in
from pytest_precision.trace.sound import (
    sound_dtype,
    sound_flag,
    sound_integer,
    sound_list,
    sound_object,
    sound_place,
    sound_sizes,
    sound_text,
    sound_texts,
    texts,
    unsound,
)


def expect_header(index: Any, ranks: int) -> None:
    """Raise unless the values of a parsed index that make a `Header` are well formed.

    Args:
        index: what the file says, with all keys but `digest` and `starts`.
        ranks: number of ranks of the recording.

    Raises:
        ValueError: it names what cannot be.
    """
    if sound_text("the name of a digest", index["digest"]) not in DIGEST_NAMES:
        raise unsound(f"a digest of {', '.join(DIGEST_NAMES)}", index["digest"])
    for kind, starts in sound_object("starts", index["starts"]).items():
        sound_texts(f"starts of {kind}", starts)
    sound_integer("world_size of an index", index["world_size"], ranks, ranks)
    for name in ("unobservable", "environment", "unshown", "place"):
        sound_texts(name, index[name])
    sound_flag("digests", index["digests"])
    for name in ("paths", "violations", "products", "given", "read"):
        texts(name, index[name])
    for name in index["products"]:
        sound_dtype("a dtype of products", name)


def expect_index(index: Any, header: Collection[str], ranks: int, content: Tensor) -> None:
    """Raise unless a trace's parsed index is well formed and fits the bytes of the rank.

    Args:
        index: what the file says; of an earlier release, it does not say where the rank ran.
        header: names of the fields of a `Header`.
        ranks: number of ranks of the recording.
        content: the bytes that the rank has written.

    Raises:
        ValueError: it names what cannot be.
    """
    index = {"place": {}} | sound_object("an index", index)
    sound_object("an index", index, (*header, "starts", *TABLE_KEYS))
    expect_header(index, ranks)
    texts("kinds", index["kinds"])
    texts("names", index["names"])
    for form in sound_list("forms", index["forms"]):
        sound_form(form)
    moments = [sound_list("a moment", row, 5) for row in sound_list("moments", index["moments"])]
    expect_course([moment for *moment, _ in moments])
    most = content.numel()
    rows = sum(sound_integer("rows of a moment", row[-1], 0, most) for row in moments)
    slots = sound_integer("a number of slots", index["slots"], 0, most)
    start = most - rows * ROW.itemsize - slots * SLOT.itemsize
    sound_integer("the offset of the table", index["table"], max(0, start), start)
    _expect_table(index, table_in(index, content))


def sound_form(form: Any) -> tuple[int, int]:
    """Return the number of bytes of a tensor of this form, and of one element; raise if unsound.

    Args:
        form: dtype, piece, shape and place, and whether the tensor is each rank's own.

    Raises:
        ValueError: it names what cannot be.
    """
    dtype, piece, shape, place, local = sound_list("a form", form, 5)
    sound_flag("local", local)
    torch_dtype = sound_dtype("a dtype", dtype)
    sizes = sound_sizes("a piece", piece)
    sound_place("a place", sound_list("a place", place), sizes, sound_sizes("a shape", shape))
    nbytes = math.prod(sizes) * torch_dtype.itemsize
    return sound_integer("bytes of a piece", nbytes), torch_dtype.itemsize


def _expect_table(index: Any, table: Table) -> None:
    for column, words in (("kind", "kinds"), ("name", "names"), ("form", "forms")):
        _expect_below(f"the number of a {column}", table.slots[column], len(index[words]))
    _expect_below("the number of a slot", table.rows["slot"], len(table.slots))
    _expect_below("whether a row has a digest", table.rows["digested"], 2)
    slots, _ = observed_in(index, table)
    digested = table.rows["digested"] != 0
    may_be = np.array([may_be_digest(slot.kind, slot.nbytes) for slot in slots], bool)
    unlike = digested & ~may_be[table.rows["slot"]]
    if unlike.any():
        slot = slots[table.rows["slot"][unlike][0]]
        raise unsound(f"values of {reprlib.repr(slot.name)}", "a digest")
    _expect_offsets(slots, table.rows[~digested], index["table"])


def _expect_offsets(slots: Sequence[TensorSlot], rows: Any, nbytes: int) -> None:
    """Raise unless tensors lie in the first bytes of a file, each where its dtype can be viewed."""
    sizes = np.array([slot.nbytes for slot in slots], np.uint64)[rows["slot"]]
    elements = np.array([sound_dtype("a dtype", slot.dtype).itemsize for slot in slots], np.uint64)
    beyond = (sizes > nbytes) | (rows["first"] > nbytes - np.minimum(sizes, nbytes))
    if beyond.any():
        first = int(rows["first"][beyond][0])
        raise unsound(f"an offset of a tensor within {nbytes} bytes", first)
    element = elements[rows["slot"]]
    odd = (rows["first"] % element != 0) | (rows["second"] != 0)
    if odd.any():
        raise unsound(
            f"an offset that is a multiple of {element[odd][0]}", int(rows["first"][odd][0])
        )


def _expect_below(subject: str, numbers: Any, limit: int) -> None:
    beyond = numbers >= limit
    if beyond.any():
        raise unsound(f"{subject} to be below {limit}", int(numbers[beyond][0]))


def expect_course(moments: list[Any]) -> None:
    """Raise unless a recording consists of whole train steps, each with its phases in order.

    Raises:
        ValueError: with the first moment that is another one.
    """
    steps = (len(moments) - 2) // (len(STEP_PHASES))
    expected = [
        [*INIT],
        *([step, "train", step + 1, phase] for step in range(steps) for phase in STEP_PHASES),
        [steps - 1, "train", steps, END],
    ]
    for moment, right in zip(moments, expected, strict=False):
        sound_list("a moment", moment, len(right))
        if moment != right or [*map(type, moment)] != [*map(type, right)]:
            raise unsound(f"the moment {right}", moment)
    if len(moments) != len(expected) or not steps:
        raise unsound("the moments of whole train steps", f"{len(moments)} moments")
