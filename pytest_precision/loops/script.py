"""Script: a side of a check that is an existing training loop, run once on every rank."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from pytest_precision.errors import expected_but_got
from pytest_precision.matrix.cell import Cell

F = TypeVar("F", bound=Callable[..., Any])

RECORDED = "train"
"""The one operation that a recorder can follow without help."""


def script(function: F) -> F:
    """Declare that a function is a side of a check by itself: a training loop, left as it is.

        @script
        def trainer(cell, record):
            model, optimizer, batches = build(cell)
            with record():
                for batch in batches:
                    loss(model, batch).backward()
                    optimizer.step()
                    optimizer.zero_grad()

    It runs once on every rank, in the process group of all ranks. The block of `record()` ends
    by itself after the train steps of the cell; see `loops.record.Record`. A step is what lies
    between two updates: optimizers that step in a row, without a forward or a backward between
    them, make one update.

    Args:
        function: takes the cell and `record`; a module-level function, since it travels to the
            ranks by import path.
    """
    function.is_script = True  # type: ignore[attr-defined]
    return function


def is_script(function: object) -> bool:
    """Return whether a callable, or the function of a `functools.partial`, is a script."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "is_script", False) is True


def unrecordable(name: str, cell: Cell) -> str | None:
    """Return what a script lacks for the sequence of its cell, or None."""
    others = [operation for operation in cell.operations if operation != RECORDED]
    if not others:
        return None
    return expected_but_got(
        f"a sequence of train steps alone for the script {name}",
        f"sequence={cell.sequence!r}",
        f"a recorder cannot make a loop do {others[0]!r}; leave it out, or write a layout, whose "
        "engine has a method for it",
    )
