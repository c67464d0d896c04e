"""Operations: each row of the table is something that the recorder and the kinds know."""

from __future__ import annotations

import pytest

from pytest_precision import Cell
from pytest_precision.engine.kinds import KINDS
from pytest_precision.matrix.sequence import OPERATIONS, Operation
from pytest_precision.recorders.engine_run import EngineRun
from pytest_precision.recorders.scripts.script import unrecordable

ROWS = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda row: row.name)


@ROWS
def test_the_recorder_runs_it(operation: Operation) -> None:
    """A row names a method without arguments."""
    assert callable(getattr(EngineRun, operation.run))


@ROWS
def test_what_it_moves_is_state(operation: Operation) -> None:
    """What is no state, or no kind, needs no exception."""
    assert all(KINDS[kind].lasts == "state" for kind in operation.leaves_state or ())


def test_a_script_is_refused_for_what_no_row_says_of_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation that is new would otherwise be waited for in a loop that never makes it."""
    monkeypatch.setitem(OPERATIONS, "pause", Operation("pause", "evaluate"))
    refused = unrecordable("trainer", Cell(sequence="train-pause-train"), resumes=True)
    assert refused is not None
    assert "a recorder cannot make a loop do 'pause'" in refused
