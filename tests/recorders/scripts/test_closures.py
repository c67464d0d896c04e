"""Closures, models that take each other's place, and forwards that nothing goes back through."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
import unchanged
from checked import ParityIn, failed
from test_steps import loss_of
from torch import nn

from pytest_precision import Cell, script


@pytest.mark.parametrize("optimizer", ["lbfgs", "adamw"])
def test_a_loop_with_closures_agrees_with_itself(parity_there: ParityIn, optimizer: str) -> None:
    """Its weights move from the first step to the last."""
    once = partial(unchanged.closures, optimizer=optimizer)
    again = partial(once, own=False)
    assert parity_there(Cell(sequence="train3")).check(once, again).outcome == "pass"


def test_a_closure_agrees_with_the_loop_without_it(parity_there: ParityIn) -> None:
    """State and numbers at the start are those before the update."""
    verdict = parity_there(Cell(sequence="train3")).check(
        unchanged.closures, partial(unchanged.closures, own=True)
    )
    assert verdict.outcome == "pass"


@script
def in_turn(cell: Cell, record: Any, planted: str = "") -> None:
    """Two models, each with an optimizer that takes a closure."""
    models = [nn.Linear(3, 2), nn.Linear(3, 4)]
    optimizers = [
        torch.optim.AdamW(model.parameters(), lr=0.2 if planted and n else 0.1)
        for n, model in enumerate(models)
    ]
    with record():
        while True:
            for model, optimizer in zip(models, optimizers, strict=True):

                def closure(model: nn.Module = model, own: Any = optimizer) -> torch.Tensor:
                    own.zero_grad()
                    loss = loss_of(model)
                    loss.backward()
                    return loss

                optimizer.step(closure)


def test_optimizers_with_closures_take_turns(parity_there: ParityIn) -> None:
    """Each has the names of its own model, and one that differs is found in its first step."""
    parity = parity_there(Cell(sequence="train4"))
    assert parity.check(in_turn, partial(in_turn, planted="")).outcome == "pass"
    reason = failed(parity, partial(in_turn, planted="lr"), in_turn).reason
    assert "lr differs at step 2" in reason
    assert "model2.weight" in reason


@contextmanager
def swapped(model: nn.Module, *, back: bool) -> Iterator[None]:
    kept = [parameter.detach().clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.data.mul_(0.5)
    yield
    for parameter, old in zip(model.parameters(), kept, strict=True):
        if back:
            parameter.data.copy_(old)


@script
def evaluating(cell: Cell, record: Any, planted: str = "", with_gradients: bool = True) -> None:
    """A loop that evaluates other weights after its third step, with gradients enabled."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record():
        for step in range(1, 9):
            loss_of(model).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 2:
                with (
                    swapped(model, back=planted != "not put back"),
                    torch.set_grad_enabled(with_gradients),
                ):
                    loss_of(model)


def test_a_weight_in_use_is_that_of_the_forward_that_goes_backward(parity_there: ParityIn) -> None:
    """An evaluation with gradients enabled, between two steps, reads others."""
    parity = parity_there(Cell(sequence="train4"))
    assert parity.check(evaluating, partial(evaluating, with_gradients=False)).outcome == "pass"
    reason = failed(parity, partial(evaluating, planted="not put back"), evaluating).reason
    assert "master differs at step 2 after optimizer_step, 0.5 times the reference" in reason


def test_a_model_that_takes_the_place_of_one_that_is_gone_has_its_names(
    parity_there: ParityIn,
) -> None:
    """To go on is to save, to build everything anew, to load and to go on."""
    parity = parity_there(Cell(sequence="train4"))
    verdict = parity.check(unchanged.rebuilt, partial(unchanged.rebuilt, anew=False))
    assert verdict.outcome == "pass"
    assert "built alike" not in str(verdict.left_out)


def test_a_scheduler_that_takes_the_place_of_one_that_is_gone_is_compared(
    parity_there: ParityIn,
) -> None:
    """What it counts wrongly is seen in the step in which its optimizer is new."""
    parity = parity_there(Cell(sequence="train3"))
    sides = partial(unchanged.rebuilt, planted=True), partial(unchanged.rebuilt, anew=False)
    assert "last_epoch of StepLR is 4 on rank 0, not 3" in failed(parity, *sides).reason
