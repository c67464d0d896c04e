"""Schedulers: those of endless training, and those of another optimizer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, IterableDataset

from pytest_precision import audit

Rules = Callable[..., dict[str, str]]


class Stream(IterableDataset[int]):
    """Has no length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def decay(step: int, *, num_training_steps: int) -> float:
    return max(0.0, 1 - step / num_training_steps)


def sequential(optimizer: Any, steps: int) -> Any:
    parts = [
        lr_scheduler.LinearLR(optimizer, total_iters=10),
        lr_scheduler.CosineAnnealingLR(optimizer, steps),
    ]
    return lr_scheduler.SequentialLR(optimizer, parts, [10])


MAKES = {
    "cosine": lambda optimizer, steps: lr_scheduler.CosineAnnealingLR(optimizer, steps),
    "linear": lambda optimizer, steps: lr_scheduler.LinearLR(optimizer, total_iters=steps),
    "sequential": sequential,
    "lambda": lambda optimizer, steps: lr_scheduler.LambdaLR(
        optimizer, partial(decay, num_training_steps=steps)
    ),
}


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_a_schedule_over_data_without_length(model: nn.Module, make: Any) -> None:
    """A trainer that found no length put the largest number in its place."""
    optimizer = torch.optim.SGD(model.parameters())
    scheduler = make(optimizer, sys.maxsize)
    (found,) = audit(model, optimizer, scheduler, DataLoader(Stream())).at_least("warning")
    assert (found.rule, found.severity) == ("endless-schedule", "error")
    assert found.reason.endswith("never decays, and DataLoader has no length to compute it from")


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_a_schedule_over_given_steps(model: nn.Module, rules: Rules, make: Any) -> None:
    """The usual way to train on data without length."""
    optimizer = torch.optim.SGD(model.parameters())
    assert rules(model, optimizer, make(optimizer, 100_000), DataLoader(Stream())) == {}


def test_a_schedule_of_another_optimizer(model: nn.Module, rules: Rules) -> None:
    """Its rates are never read."""
    optimizer, other = (torch.optim.SGD(model.parameters()) for _ in range(2))
    scheduler = lr_scheduler.ConstantLR(other)
    assert rules(model, optimizer, scheduler) == {"schedules-another": "error"}
    assert rules(model, other, scheduler) == {}
