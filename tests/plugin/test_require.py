"""With --precision-require no session passes by skipping."""

from __future__ import annotations

from collections.abc import Callable

import in_this_process  # noqa: F401
import pytest

Run = Callable[..., pytest.RunResult]

REQUIRED = ("--precision-matrix", "--precision-require")

SUITE = """
import pytest

@pytest.mark.precision_matrix(sequence=["train"], world_size=[1, 2])
def test_agrees(cell):
    if {skip}:
        pytest.skip("not here")

def test_plain():
    pass
"""


def none_ran(result: pytest.RunResult, advice: str) -> None:
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    line = f"precision: expected at least one cell to run but got none; {advice}"
    result.stdout.fnmatch_lines([line])


def test_cells_that_are_all_skipped(pytester: pytest.Pytester, run: Run) -> None:
    """Each by the test itself: green without the option."""
    pytester.makepyfile(SUITE.format(skip=True))
    assert pytester.runpytest_inprocess("--precision-matrix").ret == pytest.ExitCode.OK
    none_ran(run(*REQUIRED), "look at why they were skipped: pytest -rs")


def test_cells_that_were_not_asked_for(pytester: pytest.Pytester, run_in_ci_once: Run) -> None:
    """The option without --precision-matrix, and a selection that leaves none."""
    pytester.makepyfile(SUITE.format(skip=False))
    none_ran(run_in_ci_once("--precision-require"), "add --precision-matrix")
    none_ran(run_in_ci_once(*REQUIRED, "-k", "plain"), "look at why they were skipped: pytest -rs")


def test_one_cell_is_enough(pytester: pytest.Pytester) -> None:
    """A test may skip others itself; and a session that calls nothing requires nothing."""
    pytester.makepyfile(SUITE.format(skip="cell.world_size > 1"))
    result = pytester.runpytest_inprocess(*REQUIRED)
    result.assert_outcomes(passed=2, skipped=1)
    assert result.ret == pytest.ExitCode.OK
    assert pytester.runpytest_inprocess(*REQUIRED, "--collect-only").ret == pytest.ExitCode.OK


def test_a_failure_keeps_its_exit_status(pytester: pytest.Pytester) -> None:
    """Nothing is said of cells where something else is wrong."""
    pytester.makepyfile("import nothing_like_this")
    result = pytester.runpytest_inprocess(*REQUIRED)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.no_fnmatch_line("precision: expected at least one cell*")


LACKING = """
import pytest
from pytest_precision import layouts, workloads

@pytest.mark.precision_matrix(sequence=["train"], world_size=[2])
def test_ranks_that_are_not_there(cell, parity):
    parity.check(layouts.ddp, layouts.adamw, workload=workloads.mlp)

@pytest.mark.world_size(2)
def test_a_fixture(ranks):
    ranks.run(print)
"""


def test_a_cell_that_lacks_ranks_fails(pytester: pytest.Pytester) -> None:
    """It is skipped without the option; the words say what is there and what was asked for."""
    pytester.makepyfile(LACKING)
    inline = "--precision-ranks=inline"
    pytester.runpytest_inprocess("--precision-matrix", inline).assert_outcomes(skipped=2)
    result = pytester.runpytest_inprocess(*REQUIRED, inline)
    result.assert_outcomes(failed=2)
    lacks = "expected at most 1 ranks*but got world_size=2, which --precision-require forbids"
    result.stdout.fnmatch_lines([f"*train-w2: error: {lacks}", lacks])
