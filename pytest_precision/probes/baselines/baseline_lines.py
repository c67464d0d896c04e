"""Read a baseline line by line, which somebody may have edited, merged or cut.

Whatever is not as `CheckBaseline.text` writes it is refused with its line, and no count is believed
before it is known to be one that the file has lines for.
"""

from __future__ import annotations

import math
import re
from typing import NoReturn
from urllib.parse import unquote

from pytest_precision.errors import BaselineError, expected_but_got
from pytest_precision.probes.baselines.baseline_text import (
    FIRST_LINE,
    FIRST_LINES,
    FIRST_WORDS,
    UPDATE,
    CheckBaseline,
    KeptMoment,
    KeptSide,
    WholeTensor,
    seal_of,
    unescaped,
)
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.sound import sound_dtype, sound_sizes

_VALUE = re.compile(r"#[0-9a-f]{32}|=(?:[0-9a-f]{2})*")

_COUNT = re.compile(r"-?[0-9]{1,18}")


def baseline_of(text: str) -> CheckBaseline:
    """Parse the text of a baseline file.

    Raises:
        BaselineError: it is none; the message has the line.
    """
    lines = text.replace("\r\n", "\n").split("\n")  # git may have made other ends of lines
    is_cut = lines[-1] != ""
    if not is_cut:
        lines.pop()
    if not lines or lines[0] not in FIRST_LINES:
        got = f"line 1, {(lines or [''])[0][:80]!r}"
        raise BaselineError(expected_but_got(f"{FIRST_LINE!r} as the first line", got, UPDATE))
    reader = _Reader(lines)
    for number, line in enumerate(lines[1:], 2):
        try:
            reader.take(number, line)
        except ValueError as error:
            _refuse(number, line, error)
    if not reader.sealed and (is_cut or lines[0] == FIRST_LINE):
        _refuse(len(lines), lines[-1], ValueError("the lines below it are missing"))
    if not reader.is_whole:
        _refuse(len(lines), lines[-1], ValueError("the side above it has no moment"))
    return reader.found


def _refuse(number: int, line: str, error: ValueError) -> NoReturn:
    got = f"line {number}, {line[:80]!r}, which cannot be read: {error}"
    raise BaselineError(expected_but_got("a baseline", got, UPDATE)) from error


class _Reader:
    """Takes the lines of a baseline below the first one, in order.

    Args:
        lines: of the file.

    Attributes:
        found: what they say so far.
        sealed: whether the last one was the seal.
    """

    def __init__(self, lines: list[str]) -> None:
        self.found = CheckBaseline("", {}, {})
        self.sealed = False
        self._lines = lines
        self._moments: set[tuple[int, Moment]] = set()
        self._tensors: set[tuple[str, str, int | None]] = set()

    @property
    def is_whole(self) -> bool:
        """Whether each side so far has a moment."""
        return all(side.moments for side in self.found.sides.values())

    def take(self, number: int, line: str) -> None:
        """Take one line.

        Args:
            number: of the line, from 1.
            line: without its end.

        Raises:
            ValueError: it cannot stand there; the message says why.
        """
        word, _, rest = line.partition(" ")
        if self.sealed:
            raise ValueError("it comes after the seal")
        if (number == 2) != (word == "test"):
            raise ValueError("the second line, and no other, names the test")
        take = getattr(self, f"_take_{word}", None) if word in FIRST_WORDS else None
        if take is None:
            self._take_tensor(line)
        else:
            take(rest)

    def _take_test(self, rest: str) -> None:
        self.found.test = unescaped(rest)

    def _take_key(self, rest: str) -> None:
        name, _, value = rest.partition(" ")
        if name in self.found.key or self.found.sides:
            raise ValueError("it is there twice, or below a side")
        self.found.key[name] = unescaped(value)

    def _take_side(self, rest: str) -> None:
        name, _, layout = rest.partition(" ")
        if name in self.found.sides:  # of a bad merge: which of them do further lines describe?
            raise ValueError("the side is there twice")
        if not self.is_whole:
            raise ValueError("the side above it has no moment")
        self.found.sides[name] = KeptSide(unescaped(layout), (), [])
        self._moments = set()

    @property
    def _side(self) -> KeptSide:
        if not self.found.sides:
            raise ValueError("it belongs to no side")
        (*_, side) = self.found.sides.values()
        return side

    def _take_as(self, rest: str) -> None:
        side, same = self._side, self.found.sides.get(rest)
        if same is None or same is side or side.world_sizes:
            raise ValueError("it names no side above, or the side has lines of its own")
        side.world_sizes, side.moments = same.world_sizes, same.moments

    def _take_ranks(self, rest: str) -> None:
        sizes = tuple(_count(word, 1) for word in rest.split(" "))
        if self._side.world_sizes:
            raise ValueError("the side has ranks already")
        if sum(sizes) > len(self._lines):
            raise ValueError(f"{sum(sizes)} ranks in a file of {len(self._lines)} lines")
        self._side.world_sizes = sizes

    def _take_at(self, rest: str) -> None:
        words = rest.split(" ")
        if len(words) != len(("segment", *Moment._fields)):
            raise ValueError("a moment has five words")
        segment, op, operation, step, phase = words
        number = _count(segment)
        moment = Moment(_count(op, -1), operation, _count(step), phase)
        side = self._side
        if number >= len(side.world_sizes):
            raise ValueError(f"the side has ranks of {len(side.world_sizes)} parts")
        before = [(kept_moment.segment, kept_moment.moment.op) for kept_moment in side.moments[-1:]]
        if (number, moment) in self._moments or before > [(number, moment.op)]:
            raise ValueError("the moment is there twice, or below a later one")
        self._moments.add((number, moment))
        self._tensors = set()
        side.moments.append(KeptMoment(number, moment, []))

    def _take_tensor(self, line: str) -> None:
        side = self._side
        if not side.moments or len(line.split(" ", 5)) < 6:
            raise ValueError("it is no line of a baseline, or belongs to no moment")
        kept_moment = side.moments[-1]
        tensor = _tensor(line, side.world_sizes[kept_moment.segment])
        if (tensor.kind, tensor.name, tensor.rank) in self._tensors:
            raise ValueError("the tensor is there twice")
        self._tensors.add((tensor.kind, tensor.name, tensor.rank))
        kept_moment.tensors.append(tensor)

    def _take_end(self, rest: str) -> None:
        line = f"end {rest}"
        if line != seal_of(self._lines[: self._lines.index(line)]):
            raise ValueError("it is the seal of other lines than those above: they were edited")
        self.sealed = True


def _tensor(line: str, world_size: int) -> WholeTensor:
    kind, value, dtype, shape, rank, name = line.split(" ", 5)
    value = value.partition("(")[0]
    if not _VALUE.fullmatch(value):
        raise ValueError(f"{value[:80]!r} is neither a digest nor bytes")
    sizes = () if shape == "-" else tuple(_count(size) for size in shape.split("x"))
    sound_sizes("a shape", [*sizes])
    nbytes = math.prod(sizes) * sound_dtype("a dtype", dtype).itemsize
    if value.startswith("=") and len(value) // 2 != nbytes:
        raise ValueError(f"{len(value) // 2} bytes for {shape} of {dtype}")
    holder = None if rank == "*" else _count(rank)
    if holder is not None and holder >= world_size:
        raise ValueError(f"rank {holder} of {world_size}")
    return WholeTensor(unquote(kind), unescaped(name), dtype, sizes, holder, value)


def _count(word: str, least: int = 0) -> int:
    if not _COUNT.fullmatch(word) or int(word) < least:
        raise ValueError(f"{word[:80]!r} is no whole number from {least}")
    return int(word)
