"""Sequences: conversion of text such as `train2-eval-train2` to and from a tuple of operations.

    sequence  = operation *("-" operation)
    operation = name [count]

`OPERATIONS` defines the names, which of them take a count, and which need a `save` before them. A
sequence without `train` is refused.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from pytest_precision.errors import SequenceError, expected_but_got


class Operation(NamedTuple):
    """The operation that one word of a sequence means.

    Attributes:
        name: the word.
        run: name of the method of `trace.record.EngineRecorder` that runs the operation; this
            module must not import that class.
        counted: whether it computes microbatches, so that a number of repetitions may follow.
        held_out: whether these microbatches are the evaluation data rather than the next step's.
        needs_save: whether it restores the state of the last save; the state must then be equal.
        leaves_state: None if the operation may change training state; otherwise the kinds of state
            that may change although all others must stay as they were.
    """

    name: str
    run: str
    counted: bool = False
    held_out: bool = False
    needs_save: bool = False
    leaves_state: frozenset[str] | None = None


_ROWS = (
    Operation("train", "train", counted=True),
    # Delayed scaling records the amaxes of an evaluation too, as the recipe has it.
    Operation(
        "eval",
        "evaluate",
        counted=True,
        held_out=True,
        leaves_state=frozenset({"recorded_amax"}),
    ),
    # The forward of a skipped step did run and changes what every forward changes; in addition, an
    # overflow changes the loss scale.
    Operation(
        "skip",
        "skip",
        counted=True,
        leaves_state=frozenset({"buffer", "rng", "scale", "amax", "recorded_amax", "loss_scale"}),
    ),
    Operation("save", "save", leaves_state=frozenset()),
    Operation("load", "load", needs_save=True, leaves_state=frozenset()),
    Operation("swap", "swap", needs_save=True, leaves_state=frozenset()),
)

OPERATIONS = {operation.name: operation for operation in _ROWS}
"""Name of an operation to the operation."""

LONGEST = 100_000
"""The most operations that a sequence may have; a typing error could otherwise fill the memory."""


def _named(*, counted: bool) -> str:
    suffix = "[N]" if counted else ""
    return ", ".join(o.name + suffix for o in _ROWS if o.counted == counted)


GRAMMAR = (
    f"operations joined by '-': {_named(counted=True)} with N from 1, {_named(counted=False)}; "
    f"{' and '.join(o.name for o in _ROWS if o.needs_save)} after a save; at least one train"
)

_OPERATION = re.compile(r"([a-z]+)([1-9][0-9]*)?\Z")


def parse(text: str) -> tuple[str, ...]:
    """Parse a sequence to one entry per operation: `train2-eval` to `("train", "train", "eval")`.

    Raises:
        SequenceError: the text is not a sequence; the message has the position of the mistake.
    """
    if not isinstance(text, str):
        raise SequenceError(expected_but_got("a sequence", f"{text!r} ({type(text).__name__})"))
    return _operations(text)


@lru_cache(maxsize=256)  # thousands of cells have few different sequences
def _operations(text: str) -> tuple[str, ...]:
    operations: list[str] = []
    position = 0
    for word in text.split("-"):
        match = _OPERATION.match(word)
        operation = OPERATIONS.get(match[1]) if match else None
        if match is None or operation is None or (match[2] and not operation.counted):
            raise _refused(text, position, f"{word!r} is no operation")
        if operation.needs_save and "save" not in operations:
            raise _refused(text, position, f"{word!r} has no save before it")
        count = match[2] or "1"
        # The number of digits first: Python refuses to convert thousands of digits.
        if len(count) > len(str(LONGEST)) or len(operations) + int(count) > LONGEST:
            raise _refused(text, position, f"{word!r} makes it longer than {LONGEST} operations")
        operations += [operation.name] * int(count)
        position += len(word) + 1
    if "train" not in operations:
        raise _refused(text, 0, "nothing is trained")
    return tuple(operations)


def unparse(operations: tuple[str, ...]) -> str:
    """Return the shortest text of a tuple of operations, the inverse of `parse`."""
    words: list[str] = []
    for operation, run in groupby(operations):
        length = len(list(run))
        if OPERATIONS[operation].counted:
            words.append(operation if length == 1 else f"{operation}{length}")
        else:
            words += [operation] * length
    return "-".join(words)


def steps(operations: tuple[str, ...]) -> tuple[int, ...]:
    """Return the steps whose microbatches the operations read, each once; 0 is evaluation data."""
    read, trained = [], 0
    for operation in (OPERATIONS[name] for name in operations):
        if operation.counted:
            read.append(0 if operation.held_out else trained + 1)
        trained += operation.name == "train"
    return tuple(dict.fromkeys(read))


def _refused(text: str, position: int, problem: str) -> SequenceError:
    return SequenceError(f"sequence {text!r}, position {position}: {problem}. Expected {GRAMMAR}.")
