"""Data that differ between ranks, between two runs or from call to call are named as such."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_precision import Cell
from pytest_precision.parity.self_checks.data_check import other_data
from pytest_precision.trace.data_log import DataLog

STEADY = {1: ["a", "b"], 2: ["c", "d"]}


def log(*given: dict[int, list[str]], unsteady: tuple[int, ...] = ()) -> DataLog:
    return DataLog(given, (unsteady, *[()] * (len(given) - 1)))


def compared(ours: DataLog, theirs: DataLog, **cells: Any) -> str | None:
    candidate, reference = cells.get("candidate", Cell()), cells.get("reference", Cell())
    return other_data(ours, theirs, (candidate, reference))


def test_the_same_data_pass() -> None:
    """On any number of ranks; a step that one side alone has asked for has no counterpart."""
    more = STEADY | {0: ["e"], 3: ["f", "g"]}
    assert compared(log(STEADY, STEADY), log(more)) is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({1: ["a", "b"], 2: ["c", "x"]}, "in microbatch 1 of step 2"),
        ({1: ["a"], 2: ["c", "d"]}, "in step 1, 1 microbatches rather than 2"),
        (STEADY | {0: ["x"]}, "in microbatch 0 of the evaluation"),
    ],
    ids=["another", "fewer", "evaluation"],
)
def test_a_rank_with_other_data_is_named(given: dict[int, list[str]], words: str) -> None:
    """Each rank trains on its share of what all ranks must be given alike."""
    first = STEADY | {0: ["e"]}
    words = f"the workload gave rank 1 other data than rank 0 {words} in the candidate"
    assert compared(log(first, given), log(first)) == words


def test_a_second_run_on_other_data_is_named() -> None:
    """Whatever the two layouts do, their numbers differ."""
    words = "the workload gave other data in the second run, in microbatch 0 of step 1: "
    other = log({1: ["x", "b"]})
    assert compared(log(STEADY), other) == f"{words}is it random?"
    two = Cell(world_size=2)
    words += "is it random, or does it depend on world_size?"
    assert compared(log(STEADY, STEADY), other, candidate=two) == words


def test_data_may_depend_on_axes_of_the_users_own() -> None:
    """Such as a padding that the reference does without."""
    padded, bare = Cell(extra=(("pad", 8),)), Cell(extra=(("pad", 0),))
    assert compared(log(STEADY), log({1: ["x"]}), candidate=padded, reference=bare) is None


def test_data_that_change_from_call_to_call_are_named() -> None:
    """A skipped step is done again, and an evaluation is held against another one."""
    words = "the workload gave rank 0 other data for step 2 in a second call in the reference"
    assert compared(log(STEADY), log(STEADY, unsteady=(2,))) == words
