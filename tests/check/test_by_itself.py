"""What a run shows by itself is told of layouts, too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
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


class FromNowhere(torch.optim.Muon):
    """Muon that moves everything a thousand times as far."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["lr"] *= 1e3
        super().step()
        for group in self.param_groups:
            group["lr"] /= 1e3


FromNowhere.__name__ = "Muon"


class Matrices(workloads.mlp):
    """Has no biases, which Muon does not take."""

    def model(self, cell: Cell) -> nn.Module:
        return nn.Sequential(nn.Linear(13, 16, bias=False), nn.Tanh(), nn.Linear(16, 7, bias=False))


def by_muon(kind: type[torch.optim.Muon], side: str, workload: Workload, cell: Cell) -> Engine:
    """A layout with Muon, which no declared rule is for."""
    model = workload.model(cell)
    return Engine(workload, cell, model, kind(workload.groups(model), lr=1e-2))


@pytest.mark.parametrize("kind", [FromNowhere, torch.optim.Muon])
def test_updates_without_a_rule_are_held_to_the_rate(
    parity_by: Callable[..., Parity], kind: type[torch.optim.Muon]
) -> None:
    """As those of scripts are, where the workload's rule says nothing of the class."""
    sides = (partial(by_muon, kind, side) for side in "ab")
    verdict = verdict_of(parity_by(Cell(sequence="train2")), *sides, workload=Matrices)
    if kind is FromNowhere:
        assert verdict.gate == "by_itself"
        assert "moved at step 1 by more than 100 times what Muon moves by" in verdict.headline
    else:
        assert verdict.outcome == "pass", verdict.headline
