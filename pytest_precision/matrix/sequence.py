"""Sequences: `train2-eval-train2` to and from a tuple of operations.

    sequence  = operation *("-" operation)
    operation = ("train" / "eval" / "skip") [count] / "save" / "load" / "swap"

`load` and `swap` need a `save` before them, and a sequence without `train` trains nothing.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import groupby

COUNTED = ("train", "eval", "skip")
"""Operations that take a count: a training step, an evaluation, a step that overflows."""

SINGLE = ("save", "load", "swap")
"""A checkpoint; a fresh engine that loads it; the other layout's fresh engine that loads it."""

LONGEST = 100_000
"""Number of operations that a sequence may have; one by mistake would use up the memory."""

GRAMMAR = (
    "operations joined by '-': train[N], eval[N], skip[N] with N from 1, save, load, swap; "
    "load and swap after a save; at least one train"
)

_OPERATION = re.compile(r"(?:(train|eval|skip)([1-9][0-9]*)?|(save|load|swap))\Z")


class SequenceError(ValueError):
    """The text is no sequence; the message names the position and the grammar."""


def parse(text: str) -> tuple[str, ...]:
    """The operations of a sequence, one entry each: `train2-eval` is `("train", "train", "eval")`.

    Raises:
        SequenceError: with the position of the first operation that does not fit.
    """
    if not isinstance(text, str):
        raise SequenceError(f"expected a sequence but got {text!r} ({type(text).__name__})")
    return _operations(text)


@lru_cache(maxsize=256)  # thousands of cells have a few sequences between them
def _operations(text: str) -> tuple[str, ...]:
    operations: list[str] = []
    position = 0
    for word in text.split("-"):
        match = _OPERATION.match(word)
        if match is None:
            raise _refused(text, position, f"{word!r} is no operation")
        counted, count, single = match.groups()
        if single in ("load", "swap") and "save" not in operations:
            raise _refused(text, position, f"{single!r} has no save before it")
        # The digits first: a number of thousands of them cannot even be converted.
        if len(count or "") > len(str(LONGEST)) or len(operations) + int(count or 1) > LONGEST:
            raise _refused(text, position, f"{word!r} makes it longer than {LONGEST} operations")
        operations += [counted] * int(count or 1) if counted else [single]
        position += len(word) + 1
    if "train" not in operations:
        raise _refused(text, 0, "nothing is trained")
    return tuple(operations)


def unparse(operations: tuple[str, ...]) -> str:
    """The shortest text of a tuple of operations; `parse` takes it back."""
    words: list[str] = []
    for operation, run in groupby(operations):
        length = len(list(run))
        if operation in COUNTED:
            words.append(operation if length == 1 else f"{operation}{length}")
        else:
            words += [operation] * length
    return "-".join(words)


def steps(operations: tuple[str, ...]) -> tuple[int, ...]:
    """The steps whose microbatches are read, each once; 0 is the evaluation data."""
    read, trained = [], 0
    for operation in operations:
        if operation in COUNTED:
            read.append(0 if operation == "eval" else trained + 1)
        trained += operation == "train"
    return tuple(dict.fromkeys(read))


def _refused(text: str, position: int, problem: str) -> SequenceError:
    return SequenceError(f"sequence {text!r}, position {position}: {problem}. Expected {GRAMMAR}.")
