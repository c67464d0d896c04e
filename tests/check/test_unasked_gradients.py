"""Gradients that a test leaves unchecked are not computed once more."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from examined import verdict_of
from torch import Tensor, nn

from pytest_precision import Cell, Engine, Parity, Verdict, Workload, layouts, unchecked, workloads

CELL = Cell(sequence="train2")
OFF = {"grad": unchecked(reason="each mean counts alike")}


OF_A_RUN = sum(len(workloads.mlp().microbatches(CELL, step)) for step in (1, 2))
"""Losses of one side's own training."""

JUDGED = 3 * OF_A_RUN
"""Those of both sides, and of the reference once more; the candidate shows the same bits."""


class Counting(workloads.mlp):
    """Notes each loss that is computed, whoever asks for it, as a line of a file."""

    def __init__(self, notes: Path) -> None:
        super().__init__(width=8, depth=1)
        self.notes = notes

    def loss(self, model: nn.Module, microbatch: Any) -> tuple[Tensor, int]:
        total, tokens = super().loss(model, microbatch)
        with self.notes.open("a") as notes:
            notes.write(f"{tokens}\n")
        return total, tokens


def twin(workload: Workload, cell: Cell) -> Engine:
    """The same layout under another name."""
    return layouts.adamw(workload, cell)


Checked = Callable[..., tuple[Verdict, int]]


@pytest.fixture
def checked(parity_by: Callable[..., Parity], tmp_path: Path) -> Checked:
    """A check, in this process unless told otherwise, with how many losses it has computed."""

    def check(ranks: str = "inline", candidate: Any = twin, **terms: Any) -> tuple[Verdict, int]:
        notes = tmp_path / "losses"
        notes.write_text("")
        parity = parity_by(CELL, ranks=ranks, lines="off")
        sides = candidate, layouts.adamw
        verdict = verdict_of(parity, *sides, workload=partial(Counting, notes), **terms)
        return verdict, len(notes.read_text().splitlines())

    return check


@pytest.mark.parametrize("off", [OFF, OFF["grad"]], ids=["gradients", "everything"])
def test_what_is_turned_off_is_not_computed(checked: Checked, off: Any) -> None:
    """Each side computes the losses of its own steps alone."""
    _, computed = checked()
    assert computed == JUDGED
    verdict, computed = checked(oracle=off)
    assert computed == 2 * OF_A_RUN
    assert verdict.oracle is not None
    assert verdict.oracle["candidate"]["gradients"] == {"silent": "each mean counts alike"}


def test_gradients_of_some_tensors_alone_are_computed(checked: Checked) -> None:
    """All others are still judged."""
    verdict, computed = checked(oracle={"grad:head.*": OFF["grad"]})
    assert computed == JUDGED
    assert verdict.oracle is not None
    assert verdict.oracle["candidate"]["gradients"]["judged"] > 0


def faster(workload: Workload, cell: Cell) -> Engine:
    """The same layout with another learning rate."""
    engine = layouts.adamw(workload, cell)
    engine.optimizer.param_groups[0]["lr"] *= 2
    return engine


def test_a_second_run_of_a_failing_candidate_is_not_judged(checked: Checked) -> None:
    """It says whether the candidate repeats its bytes; who judged it would compute step 2 again."""
    verdict, computed = checked(candidate=faster)
    assert verdict.outcome == "fail"
    of_the_second_step = len(workloads.mlp().microbatches(CELL, 2))
    assert computed == JUDGED + of_the_second_step + OF_A_RUN


def test_a_reference_that_has_them_serves_as_well(checked: Checked) -> None:
    """The candidate alone is recorded, but not the other way round."""
    checked("reuse")
    assert checked("reuse", oracle=OFF)[1] == OF_A_RUN


def test_a_reference_without_them_is_recorded_again(checked: Checked) -> None:
    """A test that asks for gradients does not find them unjudged."""
    checked("reuse", oracle=OFF)
    verdict, computed = checked("reuse")
    assert computed == JUDGED
    assert verdict.oracle is not None
    assert verdict.oracle["reference"]["gradients"]["judged"] > 0
