"""Read the indices of recordings of format 2, which name each tensor of each moment in JSON."""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from pytest_precision.trace.digests import may_be_digest
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.named_digests import XXH3
from pytest_precision.trace.rank_rows import Rows, TensorSlot, rows_of
from pytest_precision.trace.row_table import stored_place
from pytest_precision.trace.sound import (
    sound_integer,
    sound_list,
    sound_object,
    sound_text,
    unsound,
)
from pytest_precision.trace.sound_index import expect_course, expect_header, sound_form

DIGEST = 32
"""Characters of a digest, hexadecimal."""


def is_of_format_2(index: Any) -> bool:
    """Return whether an index is one of format 2, which has no table."""
    return type(index) is dict and "table" not in index


def observed_in_format_2(
    index: Mapping[str, Any],
) -> tuple[list[TensorSlot], dict[Moment, Rows]]:
    """Return the slots of an index, and the rows of each moment."""
    slots = [_slot(fields) for fields in index["slots"]]
    moments = {
        Moment(*moment): rows_of([slot for slot, _ in entries], [stored for _, stored in entries])
        for moment, entries in index["moments"]
    }
    return slots, moments


def expect_index_of_format_2(index: Any, header: Collection[str], ranks: int, nbytes: int) -> None:
    """Raise unless an index of format 2 is well formed and fits the size of its binary file.

    Args:
        index: what the file says.
        header: names of the fields of a `Header`.
        ranks: number of ranks of the recording.
        nbytes: number of bytes that the rank has written.

    Raises:
        ValueError: it names what cannot be.
    """
    index = {"digest": XXH3, "starts": {}, "place": {}} | sound_object("an index", index)
    sound_object("an index", index, (*header, "starts", "slots", "moments"))
    expect_header(index, ranks)
    slots = [_extent(slot) for slot in sound_list("slots", index["slots"])]
    moments = [sound_list("a moment", row, 2) for row in sound_list("moments", index["moments"])]
    expect_course([moment for moment, _ in moments])
    for _, entries in moments:
        _expect_entries(entries, slots, nbytes)


class _Extent(NamedTuple):
    """The number of bytes of a tensor, and of one element, and whether a digest may be stored."""

    nbytes: int
    element: int
    digested: bool


def _extent(slot: Any) -> _Extent:
    kind, name, *form, nbytes = sound_list("a slot", slot, 8)
    sound_text("a kind", kind)
    sound_text("a name", name)
    size, element = sound_form(form)
    sound_integer(f"nbytes of {reprlib.repr(name)}", nbytes, size, size)
    return _Extent(size, element, may_be_digest(kind, size))


def _expect_entries(entries: Any, slots: list[_Extent], nbytes: int) -> None:
    for number, at in (
        sound_list("an entry", entry, 2) for entry in sound_list("entries", entries)
    ):
        slot = slots[sound_integer("the number of a slot", number, 0, len(slots) - 1)]
        if slot.digested and _is_digest(at):
            continue
        sound_integer("an offset", at, 0, nbytes - slot.nbytes)
        if at % slot.element:
            raise unsound(f"an offset that is a multiple of {slot.element}", at)


def _is_digest(where: Any) -> bool:
    """Return whether a value is a text of 32 hexadecimal digits, as digests are."""
    return type(where) is str and len(where) == DIGEST and set(where) <= set("0123456789abcdef")


def _slot(fields: list[Any]) -> TensorSlot:
    slot = TensorSlot(*fields)
    place = stored_place(slot.place, slot.piece)  # type: ignore[arg-type]
    return slot._replace(piece=tuple(slot.piece), shape=tuple(slot.shape), place=place)
