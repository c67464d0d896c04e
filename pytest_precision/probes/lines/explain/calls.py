"""Split logged operations into calls on single tensors, and index those of the reference."""

from __future__ import annotations

import ast
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from pytest_precision.probes.lines.operations import (
    GENERATOR,
    CodeLine,
    Constant,
    Holding,
    LoggedArgument,
    LoggedOperation,
    OperationLog,
    Site,
    Value,
    is_zero,
)

MOVES = frozenset(
    (
        "cat",
        "stack",
        "copy",
        "clone",
        "split_with_sizes_copy",
        "slice_scatter",
        "select_copy",
        "index_select",
        "contiguous",
        "chunk_cat",
        "_chunk_cat",
        "allgather",
        "_allgather_base",
        "all_gather_into_tensor",
        "as_strided_copy",
        "constant_pad_nd",
        "unbind_copy",
        "gather",
        "all_gather_copy_in",
        "wait_tensor",
    )
)
"""Base names of operations that only move values, unless they change their dtype."""

SMALL = 8
"""Elements up to which many operations make the same value by chance."""


class SingleCall(NamedTuple):
    """A logged operation on single tensors; a foreach operation on lists is split into several.

    Attributes:
        number: of the operation in its log, from 0.
        operation: as it was logged.
        arguments: of this call; of a foreach, those of one element.
        read: the values that it depends on.
        results: what it returned or wrote.
        step: the train step that it belongs to; 0 where that is not known.
    """

    number: int
    operation: LoggedOperation
    arguments: tuple[LoggedArgument, ...]
    read: tuple[Value, ...]
    results: tuple[Value, ...]
    step: int = 0

    @property
    def base(self) -> str:
        """Return the operator's name without overload, in-place or foreach form."""
        return self.operation.base

    @property
    def line(self) -> CodeLine | None:
        """Return the source line that called the operation."""
        return self.operation.line

    @property
    def at(self) -> str:
        """Return the call's place as ` at file.py:12`; empty where no line is known."""
        return "" if self.line is None else f" at {short(self.line)}"

    @property
    def by(self) -> str:
        """Return the place with the library's function that the line calls, if it calls one."""
        called = "" if self.line is None else self.line.called
        return f" in {called}, called{self.at}" if called else self.at

    @property
    def draws(self) -> bool:
        """Return whether the operation draws random numbers."""
        return any(value.storage == GENERATOR for value in self.read)

    @property
    def constants(self) -> tuple[Constant, ...]:
        """Return the call's arguments that are not tensors."""
        return tuple(argument for argument in self.arguments if isinstance(argument, Constant))


def short(line: CodeLine | Site) -> str:
    """Return the place of a source line as file name and number, such as `train.py:12`."""
    return f"{os.path.basename(line.file)}:{line.line}"


def calls(log: OperationLog) -> Iterator[SingleCall]:
    """Yield the calls on single tensors of which logged operations consist, in order."""
    ends = [*log.steps]
    for number, operation in enumerate(log.operations):
        while ends and number >= ends[0].operations:
            del ends[0]
        step = ends[0].step if ends else 0
        whole = SingleCall(
            number, operation, operation.arguments, operation.read, operation.results, step
        )
        yield from _calls_of_elements(whole) or (whole,)


def _calls_of_elements(call: SingleCall) -> list[SingleCall]:
    """Return the calls of each element of a foreach operation; empty for other operations.

    What it writes beside its lists, such as whether a gradient is finite, it makes of all of them.
    """
    operation = call.operation
    if not operation.is_foreach:
        return []
    lengths = (len(argument) for argument in call.arguments if isinstance(argument, tuple))
    number = min(next(lengths, len(call.results)), len(call.results))
    single_calls = []
    for place in range(number):
        arguments = tuple(_element(argument, place, number) for argument in call.arguments)
        read = operation._replace(arguments=arguments).read
        single_calls.append(
            call._replace(arguments=arguments, read=read, results=(call.results[place],))
        )
    beside = call.results[number:]
    return [*single_calls, call._replace(results=beside)] if beside else single_calls


def _element(argument: LoggedArgument, place: int, number: int) -> LoggedArgument:
    """Return the element at `place` of a list of `number` elements; any other argument as it is."""
    if isinstance(argument, Value):
        return argument
    if isinstance(argument, Constant):
        try:
            listed = ast.literal_eval(argument.text)
        except (ValueError, SyntaxError):
            return argument
        several = isinstance(listed, list) and len(listed) == number
        return argument._replace(text=repr(listed[place])) if several else argument
    return argument[place] if len(argument) == number else argument


def last_maker(
    rank_calls: Sequence[SingleCall], before: int, is_meant: Callable[[Value], bool]
) -> SingleCall | None:
    """Return the last call before operation `before` that made a value which `is_meant` accepts.

    Args:
        rank_calls: the calls of a rank.
        before: number of the operation.
        is_meant: whether a result is the value that is looked for.
    """
    earlier = (call for call in reversed(rank_calls) if call.number < before)
    return next((call for call in earlier if any(map(is_meant, call.results))), None)


def last_writer(rank_calls: Sequence[SingleCall], before: int, storage: int) -> SingleCall | None:
    """Return the last call before operation `before` that wrote to a memory."""
    return last_maker(rank_calls, before, lambda output: output.storage == storage)


def is_telling(value: Value) -> bool:
    """Return whether a number is distinctive enough to recognize: not a common one like 0 or 1."""
    few = value.elements == 1 and 2 * value.element.count(0) < len(value.element)
    return few or not value.uniform


def is_common(value: Value) -> bool:
    """Return whether a value may have arisen many times: few elements, or all of them equal.

    A number with as many digits as it can have is made by one computation alone, such as a norm.
    """
    if value.elements == 1 and len(value.element) >= 4:
        return not is_telling(value)
    return value.uniform or value.elements <= SMALL


def is_same(value: Value, other: Value) -> bool:
    """Return whether two logged values are equal, or one is a slice of the other."""
    same = value.digest == other.digest
    return same or value.digest in other.pieces or other.digest in value.pieces


def is_place(value: Value, other: Value) -> bool:
    """Return whether two logged values are equal and lie in the same memory."""
    return (value.digest, value.storage) == (other.digest, other.storage)


def moves(call: SingleCall) -> bool:
    """Return whether an operation only copies values, as `cat` does, with no arithmetic or cast."""
    dtypes = {value.dtype for value in (*call.read, *call.results)}
    return call.base in MOVES and len(dtypes) == 1


class ReferenceLookup:
    """Lookup of values in the reference's logs: the operations that made and that read each one.

    Args:
        logs: of its ranks.
    """

    def __init__(self, logs: Sequence[OperationLog]) -> None:
        self.calls: list[SingleCall] = []
        self._ranks: list[list[SingleCall]] = []
        self.names_at_start: dict[str, str] = {}
        self.shapes = shapes_of(logs)
        self.by_row = all(log.rows for log in logs)
        self.readers: dict[str, list[SingleCall]] = defaultdict(list)
        self.makers: dict[str, list[SingleCall]] = defaultdict(list)
        self.last_step = max((end.step for log in logs for end in log.steps), default=0)
        self._pieces: set[str] = set()
        self._wholes: set[str] = set()
        for log in logs:
            self._add_log(log)

    def _add_log(self, log: OperationLog) -> None:
        self.names_at_start |= {
            value.digest: str(holding) for holding, value in log.initial_values.items()
        }
        for value in chain(log.initial_values.values(), log.left.values()):
            self._wholes.add(value.digest)
            self._pieces |= {*value.pieces}
        self._ranks.append([*calls(log)])
        for call in self._ranks[-1]:
            self.calls.append(call)
            for calls_by_digest, values in ((self.readers, call.read), (self.makers, call.results)):
                for value in values:
                    self._pieces |= {*value.pieces}
                    self._wholes.add(value.digest)
                    for digest in (value.digest, *value.pieces):
                        calls_by_digest[digest].append(call)

    def __contains__(self, value: Value) -> bool:
        parts = [part for part in value.pieces if not is_zero(part)]  # a buffer may be padded
        return self._has(value.digest) or (bool(parts) and all(map(self._has, parts)))

    def writer_of(self, value: Value, reader: SingleCall) -> SingleCall | None:
        """Return the last operation that wrote to the memory of what an operation reads."""
        rank_calls = next(calls for calls in self._ranks if any(c is reader for c in calls))
        return last_writer(rank_calls, reader.number, value.storage)

    def has_whole(self, value: Value) -> bool:
        """Return whether the reference has a value as a whole, and not only as part of another."""
        return value.digest in self._wholes

    def _has(self, digest: str) -> bool:
        return digest in self._wholes or digest in self._pieces


def shapes_of(logs: Sequence[OperationLog]) -> dict[Holding, set[tuple[int, ...]]]:
    """Return the shapes that each named tensor has on all ranks of a run."""
    shapes: dict[Holding, set[tuple[int, ...]]] = defaultdict(set)
    for log in logs:
        for holding, value in chain(log.initial_values.items(), log.left.items()):
            shapes[holding].add(value.shape)
    return shapes
