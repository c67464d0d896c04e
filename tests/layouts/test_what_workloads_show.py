"""Each property of the built-in workloads shows a defect that passes without it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import planted_by_property as planted
import pytest
from planted import planted as replicated

from pytest_precision import Cell, Engine, Parity, ParityError, layouts, workloads

ParityIn = Callable[[Cell], Parity]


class Case(NamedTuple):
    """A defect, the workload that shows it, another without the property, and the first line."""

    defect: Any
    shows: Any
    without: Any
    words: str
    cell: Cell = Cell()
    correct: Any = Engine


SHORT = Cell(sequence="train")
CASES = [
    Case(planted.ScalesUp, workloads.mlp, planted.NeverQuiet, "exp_avg differs at step 4"),
    Case(
        planted.MeanOfNothing,
        workloads.mlp,
        planted.NeverQuiet,
        "loss differs at step 4 .* NaN",
        correct=planted.WeighsMeans,
    ),
    Case(
        planted.DecaysFrozen,
        workloads.mlp,
        planted.NothingFrozen,
        "param differs at step 1 .*blocks.2.linear.weight",
        SHORT,
    ),
    Case(
        planted.TrainsFrozen,
        workloads.mlp,
        planted.NothingFrozen,
        "blocks.2.linear.weight is missing from the reference",
        SHORT,
    ),
    Case(
        planted.masters_of_rounded,
        workloads.mlp,
        partial(workloads.mlp, rounded=True),
        "master differs .* head.weight",
        Cell("bf16", sequence="train"),
        layouts.master_adamw,
    ),
    Case(
        planted.LosesFullBuckets,
        workloads.mlp,
        partial(workloads.mlp, width=59),
        "reduced_grad .*blocks.0.linear.weight",
        Cell(sequence="train", world_size=2),
        planted.Buckets,
    ),
    Case(planted.DropsAuxiliary, workloads.moe, planted.NoAuxiliary, "loss differs", SHORT),
    Case(planted.RoundsBuffers, workloads.moe, planted.NoPrior, "differs at step 1", SHORT),
    Case(
        planted.floored,
        workloads.moe,
        partial(workloads.moe, capacity=5.0),
        r"decision differs .*blocks\.0: drop of token \d+ is 1 here, 0 in the reference; margin",
        SHORT,
    ),
]


def layout_of(side: Any) -> Any:
    """An engine as a layout; a layout as it is."""
    return partial(replicated, kind=side) if isinstance(side, type) else side


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.defect.__name__)
def test_a_property_shows_a_defect(parity_in: ParityIn, case: Case) -> None:
    """The same defect agrees where the workload lacks the property."""
    sides = layout_of(case.defect), layout_of(case.correct)
    check = partial(parity_in(case.cell).check, *sides)
    assert check(workload=case.without).outcome == "pass"
    with pytest.raises(ParityError, match=case.words):
        check(workload=case.shows)
