"""Write a check's results as lines of text, which diff well and which git can merge.

One line is one whole tensor at one moment: its kind, a digest or its bytes, dtype, shape, the rank
if each has its own, and the name. The last line seals those above it. `baseline_lines` reads them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote

import xxhash

from pytest_precision.trace.moment import Moment

MAKER_WORDS = "pytest-precision baseline "
"""How the first line of a baseline of any form begins."""

FIRST_LINE = f"{MAKER_WORDS}2"

UNSEALED_FIRST_LINE = f"{MAKER_WORDS}1"
"""Of the files of older releases, which have no seal as their last line."""

FIRST_LINES = (FIRST_LINE, UNSEALED_FIRST_LINE)
"""First lines of the files that can be read."""

FIRST_WORDS = ("test", "key", "side", "as", "ranks", "at", "end")
"""First words of lines that are about no tensor."""

UPDATE = "make the baseline again with --precision-baseline=update"

_FORMS = {"float32": "<f", "float64": "<d", "int64": "<q", "int32": "<i", "bool": "<?"}
"""Dtypes of which a few elements are also written as numbers, for readers."""

SHOWN_NUMBERS = 8
"""Most elements of a tensor that are: the losses of a step's microbatches, norms and rates."""


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
        lines = [*self._lines()]
        return "\n".join([*lines, seal_of(lines), ""])

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


def seal_of(lines: Sequence[str]) -> str:
    """Return the last line of a baseline: the number of lines above it, and their digest."""
    text = "".join(f"{line}\n" for line in lines)
    return f"end {len(lines)} {xxhash.xxh3_128_hexdigest(text.encode())}"


def _lines_of(side: KeptSide) -> Iterator[str]:
    yield f"ranks {' '.join(map(str, side.world_sizes))}"
    for segment, moment, tensors in side.moments:
        yield f"at {segment} {' '.join(map(str, moment))}"
        for tensor in tensors:
            shape = "x".join(map(str, tensor.shape)) or "-"
            rank = "*" if tensor.rank is None else str(tensor.rank)
            words = [
                _kind_word(tensor.kind),
                f"{tensor.value}{_numbers(tensor)}",
                tensor.dtype,
                shape,
                rank,
            ]
            yield " ".join([*words, _escaped(tensor.name)])


def _kind_word(kind: str) -> str:
    """Return a kind without spaces, and as no other word of a line, as an optimizer may name it."""
    word = quote(kind)
    return f"%{ord(word[0]):02X}{word[1:]}" if word in FIRST_WORDS else word


def _numbers(tensor: WholeTensor) -> str:
    """Format the elements of a small tensor in brackets, for readers of a diff."""
    form = _FORMS.get(tensor.dtype, "")
    content = bytes.fromhex(tensor.value[1:]) if tensor.value.startswith("=") else b""
    if not form or not 0 < len(content) <= SHOWN_NUMBERS * struct.calcsize(form):
        return ""
    numbers = (value for (value,) in struct.iter_unpack(form, content))
    return f"({','.join(f'{v:.9g}' if isinstance(v, float) else str(v) for v in numbers)})"


def _escaped(text: str) -> str:
    json_text = json.dumps(text, ensure_ascii=False)[1:-1]
    return json_text.encode(errors="backslashreplace").decode()  # half of a surrogate pair


def unescaped(text: str) -> str:
    """Return the text of which `_escaped` made another one.

    Raises:
        ValueError: it is none that this makes.
    """
    try:
        original = json.loads(f'"{text}"')
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{text[:80]!r} is no escaped text") from error
    return str(original)
