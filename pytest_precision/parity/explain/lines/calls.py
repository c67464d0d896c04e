"""Calls: logged operations in a form that can be compared, one for each tensor of a foreach."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from pytest_precision.trace.operations import (
    CodeLine,
    Constant,
    LoggedArgument,
    LoggedOperation,
    Site,
    Value,
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
    """One operation on single tensors.

    Attributes:
        number: of the operation in its log, from 0.
        operation: as it was logged.
        arguments: of this call; of a foreach, those of one element.
        read: the values that it depends on.
        results: what it returned or wrote.
    """

    number: int
    operation: LoggedOperation
    arguments: tuple[LoggedArgument, ...]
    read: tuple[Value, ...]
    results: tuple[Value, ...]

    @property
    def base(self) -> str:
        """Return the name of the operator, of whatever form."""
        return self.operation.base

    @property
    def line(self) -> CodeLine | None:
        """Return where it was called."""
        return self.operation.line

    @property
    def at(self) -> str:
        """Return ` at file.py:12`, or nothing where no line is known."""
        return "" if self.line is None else f" at {short(self.line)}"

    @property
    def constants(self) -> tuple[Constant, ...]:
        """Return the arguments that are no tensors."""
        return tuple(one for one in self.arguments if isinstance(one, Constant))


def short(line: CodeLine | Site) -> str:
    """Return file name and line number."""
    return f"{os.path.basename(line.file)}:{line.line}"


def calls(operations: Iterable[LoggedOperation]) -> Iterator[SingleCall]:
    """Yield the calls that operations stand for, in order."""
    for number, operation in enumerate(operations):
        whole = SingleCall(
            number, operation, operation.arguments, operation.read, operation.results
        )
        yield from _single(whole) or (whole,)


def _single(call: SingleCall) -> list[SingleCall]:
    """Return the calls of each element of a foreach operation; empty for other operations."""
    operation = call.operation
    if not operation.is_foreach:
        return []
    number = len(call.results)
    found = []
    for place in range(number):
        arguments = tuple(_element(one, place, number) for one in call.arguments)
        read = tuple(
            one
            for position, one in enumerate(arguments)
            if isinstance(one, Value) and position not in operation.written
        )
        found.append(call._replace(arguments=arguments, read=read, results=(call.results[place],)))
    return found


def _element(argument: LoggedArgument, place: int, number: int) -> LoggedArgument:
    """Return what one element of a foreach is given: a part of a list, or the argument itself."""
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
    made: Sequence[SingleCall], before: int, is_meant: Callable[[Value], bool]
) -> SingleCall | None:
    """Return the last call before an operation that made a value of some sort.

    Args:
        made: the calls of a rank.
        before: number of the operation.
        is_meant: says of a result whether it is meant.
    """
    earlier = (one for one in reversed(made) if one.number < before)
    return next((one for one in earlier if any(map(is_meant, one.results))), None)


def is_telling(value: Value) -> bool:
    """Return whether a value is hardly made twice by chance: no 0, no 1, no mask."""
    few = value.elements == 1 and 2 * value.element.count(0) < len(value.element)
    return few or not value.uniform


def is_common(value: Value) -> bool:
    """Return whether many operations make such a value: few elements, or all the same.

    A number with as many digits as it can have is made by one computation alone, such as a norm.
    """
    if value.elements == 1 and len(value.element) >= 4:
        return not is_telling(value)
    return value.uniform or value.elements <= SMALL


def is_same(value: Value, other: Value) -> bool:
    """Return whether two values are the same, or one is a part of the other."""
    same = value.digest == other.digest
    return same or value.digest in other.pieces or other.digest in value.pieces


def moves(call: SingleCall) -> bool:
    """Return whether an operation only puts values elsewhere."""
    dtypes = {value.dtype for value in (*call.read, *call.results)}
    return call.base in MOVES and len(dtypes) == 1
