"""Classify an operator's arguments: read, written, or overwritten without being read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pytest_precision._torch.dispatch import writes, written_arguments
from pytest_precision.probes.lines.log.values import Values, has_values
from pytest_precision.probes.lines.operations import Constant, LoggedArgument

OVERWRITING = frozenset(
    (
        "copy_",
        "fill_",
        "zero_",
        "normal_",
        "uniform_",
        "random_",
        "bernoulli_",
        "set_",
        "exponential_",
        "log_normal_",
        "cauchy_",
        "geometric_",
        "_foreach_copy_",
        "_foreach_zero_",
        "allgather_",
        "_allgather_base_",
        "scatter_",
        "_reduce_scatter_base_",
        "reduce_scatter_",
        "alltoall_",
        "alltoall_base_",
    )
)
"""Names of operators that do not read what they overwrite."""

FILLED_IN_PART = {"all_gather_copy_in": 1}
"""Names of operators that fill this rank's part of a buffer, whose schemas do not say so, and the
place of the buffer among their arguments. The rest of it is what the memory held before."""

LONGEST_CONSTANT = 120
"""Characters of a constant that are kept."""


def logged_arguments(
    values: Values, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[LoggedArgument], list[Tensor]]:
    """Return an operation's arguments as log entries, and the tensors among them.

    Args:
        values: knows the digests of tensors.
        args: of the operator.
        kwargs: of the operator, by keyword.
    """
    logged: list[LoggedArgument] = []
    tensors: list[Tensor] = []
    for word, argument in [*(("", argument) for argument in args), *kwargs.items()]:
        parts = argument if isinstance(argument, (list, tuple)) else (argument,)
        operands = [part for part in parts if has_values(part)]
        tensors += operands
        if not operands:
            text = repr(argument)[:LONGEST_CONSTANT] if _plain(argument) else ""
            logged.append(Constant(word, text))
        elif isinstance(argument, Tensor):
            logged.append(values.of(argument))
        else:
            logged.append(tuple(map(values.of, operands)))
    return logged, tensors


def changed_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """Yield the tensors among an operator's arguments that it has written to."""
    for argument in written_arguments(func, args, kwargs):
        for tensor in argument if isinstance(argument, (list, tuple)) else (argument,):
            if has_values(tensor):
                yield tensor


def filled_in_part(name: str, args: tuple[Any, ...]) -> list[Tensor]:
    """Return the buffer that an operator fills only in part, in a list; [] for other operators."""
    place = FILLED_IN_PART.get(name, len(args))
    return [argument for argument in args[place : place + 1] if has_values(argument)]


def overwritten_unread(
    func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[int, ...]:
    """Return the positions of arguments that an operator overwrites without reading."""
    places = writes(func)
    outs = {key for _, key in places if key in kwargs}
    keys = [*range(len(args)), *kwargs]
    first = places[:1] if name in OVERWRITING else ()
    unread = {place for place, _ in first} | {keys.index(key) for key in outs}
    if name in FILLED_IN_PART:
        unread.add(FILLED_IN_PART[name])
    return tuple(sorted(place for place in unread if place < len(keys)))


def _plain(value: Any) -> bool:
    """Return whether an argument has the same `repr` in every process, as numbers do."""
    if isinstance(value, (list, tuple)):
        return all(map(_plain, value))
    kinds = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout)
    return value is None or isinstance(value, (*kinds, torch.memory_format))
