"""noise(): what roundings explain passes, and what they do not fails."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import planted
import pytest
import torch
from variations.arithmetic import split_k_in_fp32

from pytest_precision import (
    Cell,
    Engine,
    Parity,
    ParityError,
    RecordingError,
    layouts,
    noise,
    script,
    workloads,
)
from pytest_precision.check.compare import expect_no_noise
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.recorders.scripts.script_recorder import Record

ParityIn = Callable[[Cell], Parity]

MLP = partial(workloads.mlp, depth=1)


class RoundsMasters(Engine):
    """Weights are rounded to bf16 after each update."""

    @torch.no_grad()
    def update_weights(self) -> None:
        super().update_weights()
        for parameter in self.model.parameters():
            parameter.copy_(parameter.bfloat16())


def test_another_order_of_sums_is_noise(parity_there: ParityIn) -> None:
    """It is not bitwise, and within what the reference's own roundings make."""
    parity = parity_there(Cell(sequence="train2"))
    verdict = parity.check(split_k_in_fp32, layouts.adamw, workload=MLP, criterion=noise())
    assert verdict.needed is not None


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (planted.DoubledGrads, "reduced_grad differs at step 1"),
        (planted.NeverSteps, "step of reader.weight is missing"),
        (RoundsMasters, "master differs at step 1"),
    ],
)
def test_a_defect_is_not_noise(parity_there: ParityIn, kind: type[Engine], words: str) -> None:
    """Neither a factor, nor a counter, nor a rounding to a coarser dtype."""
    candidate = partial(planted.planted, kind=kind)
    parity = parity_there(Cell(sequence="train2"))
    with pytest.raises(ParityError, match=words):
        parity.check(candidate, layouts.adamw, workload=MLP, criterion=noise())


@script
def regression(cell: Cell, record: Record, reversed_rows: bool = False, scale: float = 1) -> None:
    """A linear model, whose batches may have their rows in another order, and its loss a factor."""
    model = torch.nn.Linear(32, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(3)
    with record():
        for _ in range(3):
            rows = torch.randn(64, 32, generator=generator)
            rows = rows.flip(0) if reversed_rows else rows
            loss = scale * (model(rows) - rows[:, :16]).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def test_noise_of_a_script_is_measured_too(parity_there: ParityIn) -> None:
    """Rows in another order are within it, and the verdict says how far rounding goes."""
    parity = parity_there(Cell(precision="fp32", sequence="train2"))
    candidate = partial(regression, reversed_rows=True)
    verdict = parity.check(candidate, regression, criterion=noise())
    measured = verdict.noise["reduced_grad"]
    assert 0 < measured["rel_l2"] < 1e-5
    assert measured["of"] in ("weight", "bias")


def test_a_defect_of_a_script_is_not_noise(parity_there: ParityIn) -> None:
    """A loss that is off by a factor of 1e-4 is far beyond what its roundings make."""
    parity = parity_there(Cell(precision="fp32", sequence="train2"))
    with pytest.raises(ParityError, match="loss differs at step 1"):
        parity.check(partial(regression, scale=1.0001), regression, criterion=noise())


@pytest.mark.parametrize(
    ("given", "error"),
    [({"runs": 4}, ValueError), ({"runs": 5.0}, TypeError), ({"safety": 0.5}, ValueError)],
)
def test_what_would_measure_too_little_is_refused(
    given: dict[str, Any], error: type[Exception]
) -> None:
    """With what was expected."""
    with pytest.raises(error, match=r"expected a(n int from 5| number from 1) but got"):
        noise(**given)


def test_two_recordings_cannot_be_compared_by_it() -> None:
    """Nobody can train their reference again."""
    with pytest.raises(RecordingError, match=r"noise\(\) trains the reference again"):
        expect_no_noise(Criteria.of({"grad": noise()}))
