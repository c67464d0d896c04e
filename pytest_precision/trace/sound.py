"""Validate a recording's JSON files before their numbers are used.

A recording may come from a stranger, or from a disk that forgets. Nothing here computes with a
number before it is known to be a whole number in its range, so that no offset leads out of a file,
and no size asks for memory that the file does not have.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Collection
from typing import Any, NamedTuple

import torch

from pytest_precision.engine.engine import STEP_PHASES
from pytest_precision.errors import expected_but_got
from pytest_precision.matrix.contract import dtype_name
from pytest_precision.trace.digests import may_be_digest
from pytest_precision.trace.moment import END, INIT
from pytest_precision.trace.named_digests import DIGEST_NAMES, XXH3

LARGEST_COUNT = 1 << 60
"""The largest number that anything is counted up to; sums of two fit into 64 bits."""

TORCH_DTYPES = {
    dtype_name(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)
}
"""Every dtype of this torch by its name; what else torch has is not looked up by text of others."""

OPTIONAL = frozenset({"starts", "digest"})
"""Keys of an index that earlier releases did not write."""

DIGEST = 32
"""Characters of a digest, hexadecimal."""


def sound_integer(subject: str, value: Any, least: int = 0, most: int = LARGEST_COUNT) -> int:
    """Return `value` if it is an int within a range; raise otherwise, also for True and 1.0.

    Raises:
        ValueError: `value` is none.
    """
    if type(value) is not int or not least <= value <= most:
        raise unsound(f"{subject} to be a whole number from {least} to {most}", value)
    return value


def sound_flag(subject: str, value: Any) -> bool:
    """Return `value` if it is True or False; raise otherwise.

    Raises:
        ValueError: `value` is neither.
    """
    if type(value) is not bool:
        raise unsound(f"{subject} to be true or false", value)
    return value


def sound_dtype(subject: str, value: Any) -> torch.dtype:
    """Return the dtype of torch that a text names; raise otherwise.

    Raises:
        ValueError: `value` names none.
    """
    if sound_text(subject, value) not in TORCH_DTYPES:
        raise unsound(f"{subject} to be a dtype that this torch has, such as bfloat16,", value)
    return TORCH_DTYPES[value]


def sound_text(subject: str, value: Any) -> str:
    """Return `value` if it is a str; raise otherwise.

    Raises:
        ValueError: `value` is none.
    """
    if type(value) is not str:
        raise unsound(f"{subject} to be a text", value)
    return value


def texts(subject: str, value: Any) -> tuple[str, ...]:
    """Return `value` as a tuple if it is a list of str; raise otherwise.

    Raises:
        ValueError: `value` is none.
    """
    return tuple(sound_text(subject, text) for text in sound_list(subject, value))


def sound_list(subject: str, value: Any, length: int | None = None) -> list[Any]:
    """Return `value` if it is a list, of `length` entries if given; raise otherwise.

    Raises:
        ValueError: `value` is none.
    """
    if type(value) is not list or (length is not None and len(value) != length):
        raise unsound(
            f"{subject} to be a list" + (f" of {length}" if length is not None else ""), value
        )
    return value


def sound_object(subject: str, value: Any, names: Collection[str] | None = None) -> dict[str, Any]:
    """Return `value` if it is a dict, with exactly the keys `names` if given; raise otherwise.

    Raises:
        ValueError: `value` is none.
    """
    if type(value) is not dict or (names is not None and value.keys() != set(names)):
        raise unsound(f"{subject} to be an object" + (f" of {', '.join(names or ())}"), value)
    return value


def sound_texts(subject: str, value: Any) -> dict[str, str]:
    """Return `value` if it is a dict whose values are str; raise otherwise.

    Raises:
        ValueError: `value` is none.
    """
    items = sound_object(subject, value).items()
    return {sound_text(subject, name): sound_text(subject, text) for name, text in items}


def is_digest(value: Any) -> bool:
    """Return whether a value is a text of 32 hexadecimal digits, as digests are."""
    return type(value) is str and len(value) == DIGEST and set(value) <= set("0123456789abcdef")


def expect_index(index: Any, header: Collection[str], ranks: int, nbytes: int) -> None:
    """Raise unless a trace's parsed index is well formed and fits the size of its binary file.

    Args:
        index: what the file says.
        header: names of the fields of a `Header`.
        ranks: number of ranks of the recording.
        nbytes: number of bytes that the rank has written.

    Raises:
        ValueError: it names what cannot be.
    """
    optional = OPTIONAL & sound_object("an index", index).keys()
    required = {*header} - OPTIONAL
    sound_object("an index", index, (*required, "slots", "moments", *optional))
    if sound_text("the name of a digest", index.get("digest", XXH3)) not in DIGEST_NAMES:
        raise unsound(f"a digest of {', '.join(DIGEST_NAMES)}", index["digest"])
    for kind, starts in sound_object("starts", index.get("starts", {})).items():
        sound_texts(f"starts of {kind}", starts)
    sound_integer("world_size of an index", index["world_size"], ranks, ranks)
    for name in ("unobservable", "environment", "unshown"):
        sound_texts(name, index[name])
    _one_of("digests", index["digests"], (False, True))
    for name in ("paths", "violations", "products", "given", "read"):
        texts(name, index[name])
    for name in index["products"]:
        sound_dtype("a dtype of products", name)
    slots = [_slot(slot) for slot in sound_list("slots", index["slots"])]
    moments = [sound_list("a moment", row, 2) for row in sound_list("moments", index["moments"])]
    _expect_course([moment for moment, _ in moments])
    for _, entries in moments:
        _expect_entries(entries, slots, nbytes)


def _expect_course(moments: list[Any]) -> None:
    """Raise unless a recording consists of whole train steps, each with its phases in order."""
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


class _Extent(NamedTuple):
    """The number of bytes of a tensor, and of one element, and whether a digest may be stored."""

    nbytes: int
    element: int
    digested: bool


def _slot(slot: Any) -> _Extent:
    kind, name, dtype, piece, shape, place, local, nbytes = sound_list("a slot", slot, 8)
    sound_text("a kind", kind)
    sound_text("a name", name)
    _one_of("local", local, (False, True))
    torch_dtype = sound_dtype("a dtype", dtype)
    sizes = sound_sizes("a piece", piece)
    sound_place("a place", sound_list("a place", place), sizes, sound_sizes("a shape", shape))
    size = math.prod(piece) * torch_dtype.itemsize
    sound_integer(f"nbytes of {reprlib.repr(name)}", nbytes, size, size)
    return _Extent(size, torch_dtype.itemsize, may_be_digest(kind, size))


def sound_sizes(subject: str, value: Any) -> list[int]:
    """Return `value` if it is the shape of a tensor, which torch can number; raise otherwise.

    Raises:
        ValueError: `value` is none.
    """
    sizes = [sound_integer(f"a size of {subject}", size) for size in sound_list(subject, value)]
    # Also of an empty tensor, whose strides torch computes.
    sound_integer(f"in {subject}, elements", math.prod(max(1, size) for size in sizes))
    return sizes


def sound_place(subject: str, place: list[Any], piece: list[int], shape: list[int]) -> None:
    """Raise unless `place` is where a piece lies within a tensor, both of these shapes.

    Args:
        subject: names the place.
        place: `span` or `chunk`, and where the piece starts.
        piece: shape of the piece.
        shape: shape of the whole tensor.

    Raises:
        ValueError: it is none.
    """
    kind, *starts = place or [None]
    for start in starts:
        sound_integer(f"the start of a piece in {subject}", start)
    if kind == "chunk" and len(starts) == len(piece) == len(shape):
        ends = [start + size for start, size in zip(starts, piece, strict=True)]
        fits = all(end <= size for end, size in zip(ends, shape, strict=True))
    elif kind == "span" and len(starts) == 1:
        fits = starts[0] + math.prod(piece) <= math.prod(shape)
    else:
        fits = False
    if not fits:
        raise unsound(f"{subject} to be the place of a piece {piece} in {shape}", place)


def _expect_entries(entries: Any, slots: list[_Extent], nbytes: int) -> None:
    for number, at in (
        sound_list("an entry", entry, 2) for entry in sound_list("entries", entries)
    ):
        slot = slots[sound_integer("the number of a slot", number, 0, len(slots) - 1)]
        if slot.digested and is_digest(at):
            continue
        sound_integer("an offset", at, 0, nbytes - slot.nbytes)
        if at % slot.element:
            raise unsound(f"an offset that is a multiple of {slot.element}", at)


def _one_of(subject: str, value: Any, choices: Collection[Any]) -> None:
    if not any(value is choice for choice in choices):
        raise unsound(f"{subject} to be one of {', '.join(map(str, choices))}", value)


def unsound(subject: str, value: Any) -> ValueError:
    """Return the error for a value that cannot be, after words on what is expected instead."""
    return ValueError(expected_but_got(subject, reprlib.repr(value)))
