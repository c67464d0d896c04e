"""Write and read a check's results as lines of text, which diff well and which git can merge.

One line is one whole tensor at one moment: its kind, a digest or its bytes, dtype, shape, the rank
if each has its own, and the name. Nothing in it is executed when it is read.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, unquote

from pytest_precision.errors import BaselineError, expected_but_got
from pytest_precision.trace.moment import Moment

MAKER_WORDS = "pytest-precision baseline "
"""How the first line of a baseline of any form begins."""

FIRST_LINE = f"{MAKER_WORDS}1"

UPDATE = "make the baseline again with --precision-baseline=update"

_FORMS = {"float32": "<f", "float64": "<d", "int64": "<q", "int32": "<i", "bool": "<?"}
"""Dtypes of which a few elements are also written as numbers, for readers."""

SHOWN_NUMBERS = 8
"""Most elements of a tensor that are: the losses of a step's microbatches, norms and rates."""

_VALUE = re.compile(r"#[0-9a-f]{32}|=(?:[0-9a-f]{2})*")


class WholeTensor(NamedTuple):
    """A full tensor at one moment, as one line of a baseline file.

    Attributes:
        kind, name: see `Observation`.
        dtype: name of the dtype, without `torch.`.
        shape: of the whole tensor.
        rank: the rank whose tensor it is, where each has its own.
        value: `#` and a digest, or `=` and all bytes, hexadecimal.
    """

    kind: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    rank: int | None
    value: str


class KeptMoment(NamedTuple):
    """The tensors that a baseline file stores for one moment, such as step 2 after backward."""

    segment: int
    moment: Moment
    tensors: list[WholeTensor]


@dataclass
class KeptSide:
    """The candidate's or the reference's results, as a baseline file stores them.

    Attributes:
        layout: its import path.
        world_sizes: number of ranks of each segment.
        moments: in causal order.
    """

    layout: str
    world_sizes: tuple[int, ...]
    moments: list[KeptMoment]


@dataclass
class CheckBaseline:
    """The results of a check in one environment, as a file keeps them for later comparisons.

    Attributes:
        test: pytest's id of the test.
        key: what decides about the bits, by name.
        sides: name of each side to what it computed.
    """

    test: str
    key: dict[str, str]
    sides: dict[str, KeptSide]

    def text(self) -> str:
        """Return the text of the baseline file."""
        return "\n".join([*self._lines(), ""])

    def _lines(self) -> Iterator[str]:
        yield FIRST_LINE
        yield f"test {_escaped(self.test)}"
        yield from (f"key {name} {_escaped(value)}" for name, value in sorted(self.key.items()))
        written: dict[str, str] = {}
        for name, side in self.sides.items():
            yield f"side {name} {_escaped(side.layout)}"
            lines = [*_lines_of(side)]
            same = written.setdefault("\n".join(lines), name)
            yield from lines if same == name else [f"as {same}"]

    @classmethod
    def of_text(cls, text: str) -> CheckBaseline:
        """Parse the text of a baseline file.

        Raises:
            BaselineError: it is none; the message has the line.
        """
        lines = text.splitlines()
        if lines[:1] != [FIRST_LINE]:
            what = f"{FIRST_LINE!r} as the first line"
            advice = f"move it away, and {UPDATE}"
            raise BaselineError(expected_but_got(what, f"{lines[:1]}", advice))
        found = cls("", {}, {})
        for number, line in enumerate(lines[1:], 2):
            try:
                found._take(line)
            except (ValueError, KeyError, IndexError) as error:
                got = f"line {number}, {line[:80]!r}, which cannot be read"
                raise BaselineError(expected_but_got("a baseline", got, UPDATE)) from error
        return found

    def _take(self, line: str) -> None:
        """Parse one line of the file; lines after `side NAME` describe that side's results."""
        word, _, rest = line.partition(" ")
        if word == "test":
            self.test = _unescaped(rest)
        elif word == "key":
            name, _, value = rest.partition(" ")
            self.key[name] = _unescaped(value)
        elif word == "side":
            name, _, layout = rest.partition(" ")
            if name in self.sides:  # of a bad merge: which of them do further lines describe?
                raise ValueError(line)
            self.sides[name] = KeptSide(_unescaped(layout), (), [])
        else:
            (*_, side) = self.sides.values()
            if word == "as":
                same = self.sides[rest]
                side.world_sizes, side.moments = same.world_sizes, same.moments
            elif word == "ranks":
                side.world_sizes = tuple(map(int, rest.split()))
            elif word == "at":
                segment, op, operation, step, phase = rest.split()
                moment = Moment(int(op), operation, int(step), phase)
                side.moments.append(KeptMoment(int(segment), moment, []))
            else:
                side.moments[-1].tensors.append(_tensor(line))


def _lines_of(side: KeptSide) -> Iterator[str]:
    yield f"ranks {' '.join(map(str, side.world_sizes))}"
    for segment, moment, tensors in side.moments:
        yield f"at {segment} {' '.join(map(str, moment))}"
        for one in tensors:
            shape = "x".join(map(str, one.shape)) or "-"
            rank = "*" if one.rank is None else str(one.rank)
            words = [quote(one.kind), f"{one.value}{_numbers(one)}", one.dtype, shape, rank]
            yield " ".join([*words, _escaped(one.name)])


def _tensor(line: str) -> WholeTensor:
    kind, value, dtype, shape, rank, name = line.split(" ", 5)
    value = value.partition("(")[0]
    if not _VALUE.fullmatch(value):
        raise ValueError(value)
    sizes = () if shape == "-" else tuple(map(int, shape.split("x")))
    return WholeTensor(
        unquote(kind), _unescaped(name), dtype, sizes, None if rank == "*" else int(rank), value
    )


def _numbers(one: WholeTensor) -> str:
    """Format the elements of a small tensor in brackets, for readers of a diff."""
    form = _FORMS.get(one.dtype, "")
    held = bytes.fromhex(one.value[1:]) if one.value.startswith("=") else b""
    if not form or not 0 < len(held) <= SHOWN_NUMBERS * struct.calcsize(form):
        return ""
    found = (value for (value,) in struct.iter_unpack(form, held))
    return f"({','.join(f'{v:.9g}' if isinstance(v, float) else str(v) for v in found)})"


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _unescaped(text: str) -> str:
    return str(json.loads(f'"{text}"'))
