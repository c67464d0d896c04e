"""A script that cannot be called is refused by name, before ranks are asked for."""

from __future__ import annotations

import inspect
from functools import partial

import pytest
from checked import ParityIn

from pytest_precision import Cell, command, script
from pytest_precision.recorders.scripts.current import CurrentRecord
from pytest_precision.recorders.scripts.script import expect_signature
from pytest_precision.recorders.scripts.script_recorder import Record
from pytest_precision.recorders.scripts.steps import Steps


@script
def right(cell: Cell, record: object, stage: int = 1) -> None:
    """Does nothing."""


@script
def lacks_record(cell: Cell) -> None:
    """Was written as a test would be."""


@script
def asks_for_more(cell: Cell, record: object, stage: int) -> None:
    """Has a parameter that nobody gives a value."""


def no_resume() -> None:
    """Takes nothing."""


def takes_no_stage(cell: Cell, record: object) -> None:
    """Lacks an argument of what it resumes."""


@script(resume=takes_no_stage)
def with_a_stage(cell: Cell, record: object, stage: int = 1) -> None:
    """Is right by itself."""


@script(resume=no_resume)
def resumed_wrongly(cell: Cell, record: object) -> None:
    """Is right by itself."""


WRONG = {
    "lacks_record(cell, record) but got lacks_record(cell: ": lacks_record,
    "missing a required argument: 'stage'": asks_for_more,
    "too many positional arguments": partial(right, "fp32", 1),
    "called as takes_no_stage(cell, record) but got takes_no_stage(cell: ": partial(
        with_a_stage, stage=2
    ),
    "got an unexpected keyword argument 'stage'); ": partial(with_a_stage, stage=3),
    "called as no_resume(cell, record) but got no_resume() -> ": resumed_wrongly,
}


@pytest.mark.parametrize("words", WRONG)
@pytest.mark.parametrize("side", [0, 1])
def test_a_script_with_other_parameters_is_refused(
    parity_there: ParityIn, words: str, side: int
) -> None:
    """The message has its name, what it takes and the next step, whichever side it is."""
    sides = (WRONG[words], right) if side == 0 else (right, WRONG[words])
    with pytest.raises(TypeError, match="expected a script that is called as ") as refused:
        parity_there(Cell(sequence="train1")).check(*sides)
    assert words in str(refused.value)
    assert "let its first two parameters be the cell and record" in str(refused.value)


@pytest.mark.parametrize(
    "function",
    [right, partial(right, stage=3), partial(asks_for_more, stage=3), command(__file__, "--x")],
)
def test_a_script_with_all_values_is_taken(function: object) -> None:
    """What has a default or a value may be there."""
    expect_signature(function)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["__call__", "see", "skipped"])
def test_every_record_takes_the_same(method: str) -> None:
    """A script may be given a record or import it, and what it says goes on to the steps as it is.

    Otherwise a script that works with one of them would fail with the other.
    """
    given = inspect.signature(getattr(Record, method)).parameters
    imported = inspect.signature(getattr(CurrentRecord, method)).parameters
    kept = inspect.signature(getattr(Steps, {"__call__": "tell"}.get(method, method))).parameters
    assert {**given} == {**imported} == {**kept}
