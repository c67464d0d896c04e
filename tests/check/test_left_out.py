"""What an engine cannot show is in every verdict, and proves nothing unless the test accepts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import pytest
import torch

from pytest_precision import (
    Cell,
    Engine,
    Parity,
    ParityError,
    Workload,
    layouts,
    unchecked,
    workloads,
)

ParityIn = Callable[[Cell], Parity]

CELL = Cell(sequence="train2")


class Secretive(Engine):
    """Shows nothing of its second moment."""

    unobservable: ClassVar = {"exp_avg_sq": "it is kept inside"}


def secretive(workload: Workload, cell: Cell) -> Engine:
    model = workload.model(cell)
    return Secretive(workload, cell, model, torch.optim.AdamW(workload.groups(model)))


def test_an_engine_that_hides_state_proves_nothing(parity_there: ParityIn) -> None:
    """Whatever it does to that state, nobody would see."""
    words = r"vacuous: the candidate hides exp_avg_sq \(it is kept inside\); if nothing"
    with pytest.raises(ParityError, match=words) as failure:
        parity_there(CELL).check(secretive, layouts.adamw, workload=workloads.mlp)
    assert failure.value.verdict.outcome == "vacuous"


def test_a_test_may_accept_what_is_hidden(parity_there: ParityIn) -> None:
    """With its own reason, which the verdict repeats although it is a pass."""
    verdict = parity_there(CELL).check(
        secretive,
        layouts.adamw,
        workload=workloads.mlp,
        criterion={"exp_avg_sq": unchecked(reason="tested elsewhere")},
    )
    assert verdict.as_dict()["left_out"] == {"exp_avg_sq": "tested elsewhere"}


def test_a_pass_says_what_was_not_compared(parity_there: ParityIn) -> None:
    """Local gradients that are reduced inside backward need nobody's leave."""
    verdict = parity_there(CELL).check(layouts.ddp, layouts.adamw, workload=workloads.mlp)
    reason = "candidate: DistributedDataParallel reduces gradients inside backward"
    assert verdict.as_dict()["left_out"] == {"grad": reason}


def test_a_pass_says_that_everything_was_compared(parity_there: ParityIn) -> None:
    """Nothing left out is an answer too."""
    verdict = parity_there(CELL.replace(sequence="train1-eval-train1")).check(
        layouts.adamw, layouts.adamw, workload=workloads.mlp, reference_cell=CELL
    )
    assert verdict.as_dict()["left_out"] == {}
