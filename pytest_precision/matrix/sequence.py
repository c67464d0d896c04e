"""Parse sequences such as `train2-eval-train2` into the operations of a training run.

    sequence  = operation *("-" operation)
    operation = name [count] / name "@" ranks

`OPERATIONS` defines the names, which of them take a count, and which need a `save` before them. The
latter take a number of ranks, on which the rest of the sequence runs. A sequence without `train` is
refused.

A segment ends where other processes go on: after a `restart`, or on another number of ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import groupby
from typing import Literal, NamedTuple

from pytest_precision.errors import InputMessage, SequenceError, expected_but_got, is_bad_input

__tracebackhide__ = is_bad_input


class Operation(NamedTuple):
    """An operation of a run, such as `save`: its name, recorder method, and what it may change.

    Attributes:
        name: the word.
        run: name of the method of `EngineRun`, in `recorders`, that runs the operation; this
            module must not import that class.
        counted: whether it computes microbatches, so that a number of repetitions may follow.
        held_out: whether these microbatches are the evaluation data rather than the next step's.
        needs_save: whether it restores the state of the last save; the state must then be equal.
            The ranks that go on with it may then be of another number.
        in_new_processes: whether ranks that have run nothing before go on with it.
        in_loops: how a script follows it: as a `step` of its loop, or as part of how it is
            `resumed`; empty if a recorder cannot make a loop do it.
        asked_for: whether a layout need not know it, so that it is drawn only for a test whose own
            sequences have it.
        leaves_state: None if the operation may change training state; otherwise the kinds of state
            that may change although all others must stay as they were.
    """

    name: str
    run: str
    counted: bool = False
    held_out: bool = False
    needs_save: bool = False
    in_new_processes: bool = False
    in_loops: Literal["", "step", "resumed"] = ""
    asked_for: bool = False
    leaves_state: frozenset[str] | None = None


_ROWS = (
    Operation("train", "train", counted=True, in_loops="step"),
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
        in_loops="step",
        leaves_state=frozenset({"buffer", "rng", "scale", "amax", "recorded_amax", "loss_scale"}),
    ),
    Operation("save", "save", in_loops="resumed", leaves_state=frozenset()),
    Operation("load", "load", needs_save=True, in_loops="resumed", leaves_state=frozenset()),
    Operation(
        "restart",
        "load",
        needs_save=True,
        in_new_processes=True,
        in_loops="resumed",
        leaves_state=frozenset(),
    ),
    Operation("swap", "swap", needs_save=True, asked_for=True, leaves_state=frozenset()),
)

OPERATIONS = {operation.name: operation for operation in _ROWS}
"""Name of an operation to the operation."""

LOADS = frozenset(operation.name for operation in _ROWS if operation.needs_save)
"""Operations that restore the training state of the last save."""

STEPS_OF_LOOPS = frozenset(op.name for op in _ROWS if op.in_loops == "step")
"""Operations that are a step of a training loop, whether it makes its update or not."""

MOST_OPERATIONS = 100_000
"""The most operations that a sequence may have; a typing error could otherwise fill the memory."""

MOST_RANKS = 4096
"""The most ranks that an operation may ask for; a typing error could otherwise start thousands."""


def _named(rows: Iterable[Operation], suffix: str = "") -> str:
    return ", ".join(operation.name + suffix for operation in rows)


GRAMMAR = (
    f"operations joined by '-': {_named((o for o in _ROWS if o.counted), '[N]')} with N from 1, "
    f"{_named(o for o in _ROWS if not o.counted and not o.needs_save)}; after a save "
    f"{_named((o for o in _ROWS if o.needs_save), '[@W]')} with W ranks from here on, "
    f"1 to {MOST_RANKS}; at least one train"
)

_OPERATION = re.compile(r"([a-z]+)(?:([1-9][0-9]*)|@([1-9][0-9]*))?\Z")


def parse(text: str) -> tuple[str, ...]:
    """Parse a sequence to one entry per operation: `train2-eval` to `("train", "train", "eval")`.

    An operation that goes on with another number of ranks keeps it: `load@2`.

    Raises:
        SequenceError: the text is not a sequence; the message has the position of the mistake.
    """
    if not isinstance(text, str):
        raise SequenceError(
            expected_but_got(
                "a sequence such as 'train2-eval'", f"{text!r} ({type(text).__name__})"
            )
        )
    return _operations(text)


@lru_cache(maxsize=256)  # thousands of cells have few different sequences
def _operations(text: str) -> tuple[str, ...]:
    operations: list[str] = []
    position = 0
    for word in text.split("-"):
        match = _OPERATION.match(word)
        operation = OPERATIONS.get(match[1]) if match else None
        if match is None or operation is None or (match[2] and not operation.counted):
            raise _sequence_error(text, position, f"{word!r} is no operation")
        if match[3] and not operation.needs_save:
            raise _sequence_error(
                text, position, f"{word!r} loads nothing, and so cannot change the number of ranks"
            )
        if match[3] and (len(match[3]) > len(str(MOST_RANKS)) or int(match[3]) > MOST_RANKS):
            raise _sequence_error(text, position, f"{word!r} has more than {MOST_RANKS} ranks")
        if operation.needs_save and "save" not in operations:
            raise _sequence_error(text, position, f"{word!r} has no save before it")
        count = match[2] or "1"
        # The number of digits first: Python refuses to convert thousands of digits.
        if len(count) > len(str(MOST_OPERATIONS)) or len(operations) + int(count) > MOST_OPERATIONS:
            raise _sequence_error(
                text, position, f"{word!r} makes it longer than {MOST_OPERATIONS} operations"
            )
        operations += [word if match[3] else operation.name] * int(count)
        position += len(word) + 1
    if "train" not in operations:
        raise _sequence_error(text, 0, "nothing is trained")
    return tuple(operations)


def unparse(operations: tuple[str, ...]) -> str:
    """Join operations to the shortest text, such as `train2-save`, the inverse of `parse`."""
    words: list[str] = []
    for operation, run in groupby(operations):
        length = len(list(run))
        if OPERATIONS[name_of(operation)].counted:
            words.append(operation if length == 1 else f"{operation}{length}")
        else:
            words += [operation] * length
    return "-".join(words)


@lru_cache(maxsize=256)
def operation_names(text: str) -> tuple[str, ...]:
    """Return the names of a run's operations (train, save, load), without numbers of ranks."""
    return tuple(map(name_of, parse(text)))


def name_of(operation: str) -> str:
    """Return the name in an operation such as `load@2`, without its number of ranks."""
    return operation.partition("@")[0]


def ranks_of(operation: str) -> int | None:
    """Return the number of ranks after an operation such as `load@2`; None for no change."""
    ranks = operation.partition("@")[2]
    return int(ranks) if ranks else None


def steps(operations: tuple[str, ...]) -> tuple[int, ...]:
    """Return the numbers of the train steps whose data a run reads; 0 is the evaluation data."""
    read = []
    trained = 0
    for operation in (OPERATIONS[name] for name in operations):
        if operation.counted:
            read.append(0 if operation.held_out else trained + 1)
        trained += operation.name == "train"
    return tuple(dict.fromkeys(read))


def _sequence_error(text: str, position: int, problem: str) -> SequenceError:
    message = f"sequence {text!r}, position {position}: {problem}. Expected {GRAMMAR}."
    return SequenceError(InputMessage(message))


class Segment(NamedTuple):
    """A part of a run, from one operation to another, that one group of ranks executes.

    Attributes:
        number: of the segment, from 0.
        start: index of its first operation, which loads in all segments but the first.
        stop: index of the operation after its last one.
        done: number of train steps of the segments before it.
        world_size: number of ranks.
        in_new_processes: whether its ranks must have run nothing before.
    """

    number: int
    start: int
    stop: int
    done: int
    world_size: int
    in_new_processes: bool


@lru_cache(maxsize=256)  # every step of a run asks
def segments(text: str, world_size: int) -> tuple[Segment, ...]:
    """Split a run's sequence at each load in new processes or on another number of ranks.

    A load that names the number of ranks that it already has divides nothing.
    """
    return tuple(_segments(parse(text), world_size))


def _segments(operations: tuple[str, ...], world_size: int) -> Iterator[Segment]:
    segment = Segment(0, 0, 0, 0, world_size, in_new_processes=False)
    done = 0
    for index, operation in enumerate(operations):
        ranks = ranks_of(operation) or segment.world_size
        new = OPERATIONS[name_of(operation)].in_new_processes
        if new or ranks != segment.world_size:
            yield segment._replace(stop=index)
            segment = Segment(segment.number + 1, index, index, done, ranks, new)
        done += operation == "train"
    yield segment._replace(stop=len(operations))
