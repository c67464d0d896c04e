"""What a run shows by itself is told of layouts, too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from examined import verdict_of
from torch import Tensor, nn

from pytest_precision import Cell, Engine, Parity, Workload, layouts, workloads


def with_noise(rate: str, workload: Workload, cell: Cell) -> Engine:
    """A layout whose backward calls dropout anew, and changes nothing by it."""
    engine = layouts.adamw(workload, cell)
    first = next(iter(engine.model.parameters()))
    first.register_hook(drawn)  # type: ignore[no-untyped-call]
    return engine


def drawn(gradient: Tensor) -> Tensor:
    with torch.no_grad():
        nn.Dropout(0.5)(gradient)
    return gradient


def test_a_layout_that_draws_in_backward_is_told(parity_by: Callable[..., Parity]) -> None:
    """Though both sides agree, and all other judgements are satisfied."""
    sides = (partial(with_noise, "a"), partial(with_noise, "b"))
    verdict = verdict_of(parity_by(Cell(sequence="train2")), *sides, workload=workloads.mlp)
    assert (verdict.outcome, verdict.gate) == ("fail", "by_itself")
    assert verdict.headline.startswith("the backward of step 1 drew random numbers")
