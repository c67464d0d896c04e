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
    workloads,
)
from pytest_precision.check.compare import expect_no_noise
from pytest_precision.parity.compare.criteria import Criteria

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
