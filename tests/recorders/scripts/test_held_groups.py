"""Loops that hold a parameter group and set its options, while assignments to them are logged."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import unchanged
from torch import Tensor, nn

from pytest_precision import Cell
from pytest_precision.probes.lines.logged_script import log_script
from pytest_precision.probes.lines.operation_files import read_operations
from pytest_precision.recorders.variant import Variant
from pytest_precision.trace.moment import EVERYTHING, LogRequest

RATES = (0.4, 0.2, 0.05)


def holding(held: str, trained: list[Tensor]) -> Callable[..., None]:
    """Return a loop of three steps that sets the rate in a group which it holds.

    Args:
        held: the group that is `given` to the optimizer, `taken` from it, or taken after a `load`.
            `taken` is held over steps that compiled functions make.
        trained: takes the weights of the end.
    """

    def script(cell, record):  # type: ignore[no-untyped-def]
        torch.manual_seed(0)
        model = nn.Linear(7, 3)
        with record(model):
            given: dict[str, Any] = {"params": [*model.parameters()], "lr": 0.1}
            optimizer = torch.optim.SGD([given])
            if held == "load":
                optimizer.load_state_dict(optimizer.state_dict())
            group = given if held == "given" else optimizer.param_groups[0]
            step = optimizer.step
            if held == "taken":
                step = compiled(step)
            for rate, (inputs, targets) in zip(RATES, unchanged.batches(), strict=False):
                group["lr"] = rate
                others = copy.copy(group), group | {"lr": 7.0}
                others[0]["lr"] = others[1]["lr"] = 9.0
                nn.functional.mse_loss(model(inputs), targets).backward()
                step()
                optimizer.zero_grad()
        trained.extend(parameter.detach() for parameter in model.parameters())

    return script


def compiled(step: Callable[[], Any]) -> Callable[[], Any]:
    """Return a compiled function that takes a step; the step stays eager, which is faster."""
    eager = torch.compiler.disable(step)
    return torch.compile(lambda: eager(), backend="eager")


@pytest.mark.parametrize("held", ["given", "taken", "load"])
def test_a_held_group_sets_the_rate_that_trains(
    one_rank: None, few_objects: None, tmp_path: Path, held: str
) -> None:
    """Logging leaves the bits of the weights alone, and copies of a group are no groups."""
    logged: list[Tensor] = []
    script = holding(held, logged)
    log_script(
        script,
        Cell(sequence="train3"),
        tmp_path,
        EVERYTHING,
        None,
        Variant(logged=LogRequest(2, 3)),
    )
    plain = plainly_trained()
    assert [*map(torch.equal, logged, plain)] == [True, True]
    shown = {one.value for one in read_operations(tmp_path, 0).settings if one.option == "lr"}
    assert shown == {"0.1", *(map(repr, RATES) if held != "given" else ())}


def plainly_trained() -> list[Tensor]:
    """Return the weights that the three rates give, without a recording."""
    torch.manual_seed(0)
    weights = [*nn.Linear(7, 3).parameters()]
    for rate, (inputs, targets) in zip(RATES, unchanged.batches(), strict=False):
        loss = nn.functional.mse_loss(nn.functional.linear(inputs, *weights), targets)
        for weight, grad in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.data.add_(grad, alpha=-rate)
    return [weight.detach() for weight in weights]
