"""Known defects that are planted into a candidate tell what its cell would not notice."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import in_this_process  # noqa: F401
import pytest
import torch
from torch import nn

from pytest_precision import Cell, Engine, Parity, ParityError, layouts, norm, unchecked, workloads
from pytest_precision.recorders.perturb.mutants import MUTANTS

ParityIn = Callable[[Cell], Parity]

SMALL = partial(workloads.moe, experts=3, depth=1)
TINY = partial(workloads.mlp, width=17, depth=1)


class Weak(workloads.mlp):
    """One group, a constant rate, no decay, no clipping, and one microbatch."""

    max_norm = None

    def __init__(self) -> None:
        super().__init__(width=17, depth=1)

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        return [{"params": list(model.parameters()), "lr": self.lr, "weight_decay": 0.0}]

    def scheduler(self, optimizer: torch.optim.Optimizer) -> None:
        return None

    def microbatches(self, cell: Cell, step: int) -> list[Any]:
        return super().microbatches(cell, step)[:1]


def planted(parity: Parity, workload: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """What comes of the mutants of a candidate that passes."""
    parity.settings = replace(parity.settings, mutate=0.0)
    verdict = parity.check(layouts.ddp, layouts.adamw, workload=workload, **options)
    found = verdict.mutants
    assert found is not None
    each = [*found["killed"], *found["survived"], *found["equivalent"]]
    assert sorted(each) == sorted(MUTANTS)
    return found


# In CI, the rich workload is the smallest one; experts have no defects of their own.
@pytest.mark.parametrize(
    ("workload", "sequence"),
    [
        (TINY, "train2-eval-save-load-train"),
        pytest.param(SMALL, "train2-eval-train-save-load-train2", marks=pytest.mark.nightly),
    ],
    ids=["mlp", "moe"],
)
def test_a_bitwise_cell_of_a_rich_workload_notices_all(
    parity_there: ParityIn, workload: Callable[..., Any], sequence: str
) -> None:
    """All that change anything."""
    found = planted(parity_there(Cell(sequence=sequence)), workload)
    assert found["survived"] == {}
    assert len(found["killed"]) >= 15


def test_what_a_weak_workload_hides_is_equivalent(parity_there: ParityIn) -> None:
    """No decay, no schedule and no load: nothing differs, and it is not counted."""
    found = planted(parity_there(Cell(sequence="train2")), Weak)
    assert found["survived"] == {}
    assert {
        "weight decay is left out",
        "the schedule is ignored",
        "gradients are not clipped",
        "each microbatch counts alike, however many tokens it has",
        "a load brings no first moments",
    } <= {*found["equivalent"]}


def test_what_a_loose_criterion_lets_through_is_named(parity_there: ParityIn) -> None:
    """With what would show it."""
    alone = unchecked(reason="the oracle would notice what the criterion does not")
    parity = parity_there(Cell(sequence="train"))
    found = planted(parity, Weak, criterion=norm(rel=3e-3), oracle=alone)
    name = "weights are rounded to bf16 after each update"
    assert found["survived"][name] == MUTANTS[name].advice
    assert "every gradient is doubled" in found["killed"]


def unhooked(workload: workloads.mlp, cell: Cell) -> Engine:
    """Build a layout whose optimizer has no hooks."""
    engine = layouts.ddp(workload, cell)
    engine.optimizer.register_step_pre_hook = None  # type: ignore[assignment]
    return engine


def test_a_defect_that_could_not_be_planted_is_not_noticed(parity_in: ParityIn) -> None:
    """The error that it ends with is not the check's doing."""
    parity = parity_in(Cell(sequence="train"))
    parity.settings = replace(parity.settings, mutate=0.0)
    with pytest.raises(ParityError, match=r"engine that takes the planted defect .* not callable"):
        parity.check(unhooked, layouts.adamw, workload=Weak)


SUITE = """
from functools import partial

import pytest
from pytest_precision import layouts, norm, unchecked, workloads

tiny = partial(workloads.mlp, width=17, depth=1)

@pytest.mark.precision_matrix(sequence=["train"])
def test_agrees(cell, parity):
    parity.check(
        layouts.ddp, layouts.adamw, workload=tiny, criterion=norm(rel=3e-3),
        oracle=unchecked(reason="the criterion alone"),
    )
"""


def test_a_check_that_notices_too_little_is_vacuous(pytester: pytest.Pytester) -> None:
    """It says how many planted defects went unnoticed, and which."""
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_inprocess(
        "--precision-matrix", "--precision-mutate=1", "--precision-ranks=inline"
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=1)
    shown = " ".join(result.stdout.str().split())
    for words in (
        r"mutants: \d+ of \d+ planted defects noticed \(\d+%\)",
        r"never noticed in \S+::test_agrees: .*weights are rounded to bf16 after each update",
        r"vacuous: expected at least 100% of planted defects to be noticed but got \d+ of \d+; ",
    ):
        assert re.search(words, shown), words
