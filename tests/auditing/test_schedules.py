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

from pytest_precision import NoSetupError, audit
from pytest_precision.auditing.audit import audit_built

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


class Refusing(Stream):
    """Has a length that raises something else than Python does."""

    def __len__(self) -> int:
        raise RuntimeError("no length in streaming mode")


@pytest.mark.parametrize("data", [Stream, Refusing])
def test_a_schedule_that_asks_for_the_length(model: nn.Module, data: type[Stream]) -> None:
    """It cannot be built; the finding says what to give it instead."""

    def build() -> Any:
        optimizer, loader = torch.optim.SGD(model.parameters()), DataLoader(data())
        return model, optimizer, lr_scheduler.CosineAnnealingLR(optimizer, 3 * len(loader))

    (found,) = audit_built(build).findings
    assert (found.rule, found.severity) == ("length-unknown", "error")
    assert "length" in found.reason or "len()" in found.reason


def test_a_loader_whose_length_raises(model: nn.Module, rules: Rules) -> None:
    """Whatever it raises, it has none; that alone is no finding."""
    optimizer = torch.optim.SGD(model.parameters())
    assert rules(model, optimizer, DataLoader(Refusing())) == {}


def test_other_errors_of_the_function_are_no_findings() -> None:
    """They say that there is nothing to audit, and keep their traceback."""

    def build() -> Any:
        raise TypeError("object of type 'NoneType' has no len()")

    with pytest.raises(NoSetupError, match="got TypeError: object of type 'NoneType'") as raised:
        audit_built(build)
    assert isinstance(raised.value.__cause__, TypeError)


def test_a_schedule_of_another_optimizer(model: nn.Module, rules: Rules) -> None:
    """Its rates are never read."""
    optimizer, other = (torch.optim.SGD(model.parameters()) for _ in range(2))
    scheduler = lr_scheduler.ConstantLR(other)
    assert rules(model, optimizer, scheduler) == {"schedules-another": "error"}
    assert rules(model, other, scheduler) == {}


def test_a_schedule_that_begins_anew(rules: Rules) -> None:
    """Beside an optimizer that has made steps; after one step it may be yet to follow."""
    layer = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(layer.parameters(), weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    for count in range(2):
        layer(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        expected = {"schedule-behind": "warning"} if count else {}
        assert rules(layer, optimizer, scheduler) == expected
    scheduler.step()
    assert rules(layer, optimizer, scheduler) == {}
