"""Declare that a function runs an existing training loop, as one side of a comparison."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from typing import Any, TypeVar, overload

from pytest_precision.errors import expected_but_got, is_bad_input, named
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.sequence import LOADS, OPERATIONS, STEPS_OF_LOOPS
from pytest_precision.matrix.ways_in import LAYOUT, SCRIPT, WayIn

__tracebackhide__ = is_bad_input

Function = Callable[..., Any]
ScriptFunction = TypeVar("ScriptFunction", bound=Function)


@overload
def script(function: ScriptFunction) -> ScriptFunction: ...
@overload
def script(*, resume: Function) -> Callable[[ScriptFunction], ScriptFunction]: ...


def script(function: Any = None, *, resume: Function | None = None) -> Any:
    """Declare that a function runs an existing training loop, to be candidate or reference.

    @script
        def trainer(cell, record):
            model, optimizer, batches = build(cell)
            with record():
                for batch in batches:
                    loss(model, batch).backward()
                    optimizer.step()
                    optimizer.zero_grad()

    It runs once on every rank, in the process group of all ranks. The block of `record()` ends
    by itself after the train steps of the cell; see `script_recorder.Record`. A step is what lies
    between two updates: optimizers that step in a row, without a forward or a backward between
    them, make one update.

    In a sequence such as `train2-save-load-train2` the loop is ended after the save, and `resume`
    is called in its place, which builds everything anew, loads, and goes on:

        def resumed(cell, record):
            train(record, resume_from=record.folder)

        @script(resume=resumed)
        def trainer(cell, record):
            train(record, save_every=record.save_after, save_to=record.folder)

    Args:
        function: takes the cell and `record`; a module-level function, since it travels to the
            ranks by import path.
        resume: takes the same as `function`, and continues from the checkpoint in
            `record.folder`.

    Raises:
        TypeError: one of the two cannot be called.
    """
    for name, argument in (("function", function), ("resume", resume)):
        if argument is not None and not callable(argument):
            advice = "write @script, or @script(resume=function)"
            raise TypeError(expected_but_got("a function", named(name, argument), advice))

    def declared(function: Any) -> Any:
        function.way_in = SCRIPT
        function.resume = resume
        return function

    return declared if function is None else declared(function)


def is_script(function: object) -> bool:
    """Return whether a callable, or a `partial`'s function, is declared as a script or command."""
    return way_in(function) is not LAYOUT


def way_in(function: object) -> WayIn:
    """Return by which of three ways a callable defines its training: engine, script or command."""
    way = getattr(_declared(function), "way_in", LAYOUT)
    return way if isinstance(way, WayIn) else LAYOUT


def resumes(function: object) -> bool:
    """Return whether a script declares a function that resumes it from a checkpoint."""
    return getattr(_declared(function), "resume", None) is not None


def resumed(function: Function) -> Function:
    """Return the `resume=` function of a script; it gets the arguments that a `partial` binds."""
    if isinstance(function, functools.partial):
        return functools.partial(resumed(function.func), *function.args, **function.keywords)
    resume: Function = function.resume  # type: ignore[attr-defined]
    return resume


def expect_signature(function: Function) -> None:
    """Raise unless a script and its `resume=` function take the arguments (cell, record).

    Raises:
        TypeError: one takes other arguments than the cell and `record`.
    """
    for part in (function, resumed(function)) if resumes(function) else (function,):
        declared: Any = _declared(part)
        name = getattr(declared, "__name__", repr(declared))
        try:
            signature(part).bind("cell", "record")
        # A ValueError is of a `functools.partial` that binds what its function does not take.
        except (TypeError, ValueError) as error:
            raise TypeError(
                expected_but_got(
                    f"a script that is called as {name}(cell, record)",
                    f"{name}{signature(declared)} ({error.__cause__ or error})",
                    "let its first two parameters be the cell and record, and give each other one "
                    f"a default or a value, as in functools.partial({name}, argument=value); what "
                    "resumes a script is given the same",
                )
            ) from None


def unrecordable(name: str, cell: Cell, *, resumes: bool) -> str | None:
    """Return why a script cannot run the test's sequence of steps, saves and loads; None if it can.

    Args:
        name: of the script.
        cell: its sequence is asked for.
        resumes: whether the script says how it is resumed.
    """
    for advice in _lacking(cell.operations, resumes=resumes):
        return expected_but_got(
            f"a sequence that the script {name} can follow", f"sequence={cell.sequence!r}", advice
        )
    return None


def _lacking(operations: Sequence[str], *, resumes: bool) -> Iterator[str]:
    """Yield advice on each operation, such as `load`, that a script's training loop cannot run."""
    for operation in operations:
        how = OPERATIONS[operation].in_loops
        if how == "resumed" and not resumes:
            yield (
                f"a recorder cannot make a loop do {operation!r} by itself; say how it is resumed, "
                "with @script(resume=function)"
            )
        elif not how:
            yield (
                f"a recorder cannot make a loop do {operation!r}; leave it out, or write a layout, "
                "whose engine has a method for it"
            )
    for first, second in zip((None, *operations), (*operations, None), strict=True):
        if second == "save" and first not in STEPS_OF_LOOPS:
            yield "a loop saves once, after a step; put a train before each save"
        if first in LOADS and second not in STEPS_OF_LOOPS:
            yield f"what a loop has loaded shows in its next step; put a train after each {first}"
    saves = 0
    for operation in operations:
        saves = 0 if operation in LOADS else saves + (operation == "save")
        if saves > 1:
            yield "a loop saves once before it is resumed; leave the other saves out"


def _declared(function: object) -> object:
    while isinstance(function, functools.partial):
        function = function.func
    return function
