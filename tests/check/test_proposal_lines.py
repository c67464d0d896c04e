"""What a failure proposes is green at the first try on other data, or it proposes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from catalogue import planted
from examined import OTHER_SEEDS, bounds_proposed, verdict_of
from variations import rounded_otherwise

from pytest_precision import Cell, Engine, Parity, Workload, layouts, norm, unchecked, workloads

IN_BF16 = Cell("bf16", "fp32")
SMALL = partial(workloads.gpt, heads=3, depth=1)

ParityIn = Callable[[Cell], Parity]


@pytest.fixture
def parity_here(parity_by: Callable[..., Parity]) -> ParityIn:
    """The fixture `parity` of a test, in this process, which names no lines."""
    return partial(parity_by, lines="off", ranks="inline")


IN_CI = (rounded_otherwise.row_by_row, rounded_otherwise.rounds_updates_once)
"""One that rounds its activations otherwise, and one its weights."""


def in_ci(layout: Callable[..., Engine]) -> Any:
    """Leave to the nightly run what rounds as another one does."""
    marks = () if layout in IN_CI else pytest.mark.nightly
    return pytest.param(layout, id=layout.__name__, marks=marks)


@pytest.mark.parametrize(
    ("sequence", "seeds"),
    [
        ("train2", OTHER_SEEDS[:1]),
        pytest.param("train4", OTHER_SEEDS[1:], marks=pytest.mark.nightly),
    ],
    ids=["a seed", "further seeds"],
)
@pytest.mark.parametrize("layout", [*map(in_ci, rounded_otherwise.LAYOUTS)])
def test_a_proposal_is_green_on_other_seeds(
    parity_here: ParityIn, layout: Callable[..., Engine], sequence: str, seeds: Sequence[int]
) -> None:
    """In bf16, at the first try; before it is printed it was held against another start."""
    sides, cell = (layout, layouts.adamw), IN_BF16.replace(sequence=sequence)
    failure = verdict_of(parity_here(cell), *sides, workload=partial(SMALL, seed=0))
    bounds = bounds_proposed(failure)
    assert bounds is not None, failure.details
    assert "They hold for other weights and data, too." in "\n".join(failure.details)
    for seed in seeds:
        again = verdict_of(
            parity_here(cell), *sides, workload=partial(SMALL, seed=seed), criterion=bounds
        )
        assert again.outcome == "pass", again.reason


class Doubled(Engine):
    """Every gradient counts twice."""

    def reduce_grads(self) -> None:
        """Multiply what was summed."""
        super().reduce_grads()
        for _, weight in self.masters():
            if weight.grad is not None:
                weight.grad.mul_(2)


def doubled(workload: Workload, cell: Cell) -> Engine:
    """Replicated AdamW with that error."""
    return planted(workload, cell, kind=Doubled)


def test_an_error_that_has_a_name_gets_no_bound(parity_here: ParityIn) -> None:
    """Twice the gradient is no rounding, whatever tolerance would let it pass."""
    failure = verdict_of(parity_here(Cell()), doubled, layouts.adamw, workload=workloads.mlp)
    assert bounds_proposed(failure) is None
    said = "\n".join(failure.details)
    assert "No criterion is proposed: 2 times the reference" in said
    assert "is no rounding." in said


def test_what_the_test_left_out_stays_left_out(parity_here: ParityIn) -> None:
    """So that the whole criterion can be replaced by what is printed."""
    mine = {"default": norm(rel=1e-6), "rng": unchecked(reason="drawn by nobody")}
    failure = verdict_of(
        parity_here(IN_BF16.replace(sequence="train")),
        rounded_otherwise.fused_gelu,
        layouts.adamw,
        workload=SMALL,
        criterion=mine,
    )
    bounds = bounds_proposed(failure)
    assert bounds is not None, failure.details
    assert bounds["rng"] == mine["rng"]
