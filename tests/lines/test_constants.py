"""A line that both sides run with other numbers is named with both numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from logged_blocks import culprit_between, operations
from marked_lines import marked
from torch import Tensor

from pytest_precision.probes.lines.operations import OperationLog

HERE = Path(__file__)


def logged(run: Callable[[float], None], number: float) -> OperationLog:
    """Log what a function does with a number."""
    with operations() as logger:
        run(number)
    return logger.log


def loss_of() -> Tensor:
    """Return the loss of a weight whose elements all differ."""
    return torch.linspace(0.1, 1.7, 16).requires_grad_().square().mean()


def accumulated(number: float) -> None:
    """Divide two losses; by 1, each keeps its value, and only its gradient is wrong."""
    for _ in range(2):
        loss = loss_of() / number  # accumulated
        loss.backward()  # type: ignore[no-untyped-call]


def scaled(number: float) -> None:
    """Divide a loss before it is scaled."""
    loss = loss_of() / number  # scaled
    (loss * torch.tensor(1024.0)).backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("run", [accumulated, scaled])
def test_a_division_by_one_is_named_with_what_the_reference_divides_by(
    run: Callable[[float], None],
) -> None:
    """It changes no value, so the first wrong value is made later."""
    found = culprit_between(logged(run, 1), logged(run, 2), "loss")
    assert (found.line, found.kind) == (marked(HERE, run.__name__), "constant"), found.text
    assert found.text.endswith("the reference divided by 2 here, the candidate by 1")


def in_turns(number: float) -> None:
    """Multiply a loss by one factor or by two, on one line."""
    loss = loss_of()
    for factor in (2.0, 3.0)[: int(number)]:
        loss = loss * factor  # in_turns
    loss.exp().backward()  # type: ignore[no-untyped-call]


def test_a_turn_that_is_left_out_is_no_other_constant() -> None:
    """The reference multiplies by the same number there, too."""
    found = culprit_between(logged(in_turns, 1), logged(in_turns, 2), "loss")
    assert (found.line, found.kind) == (marked(HERE, "in_turns"), "missing"), found.text
    assert "the reference first runs aten.mul.Tensor" in found.text


def updated(number: float) -> None:
    """Update a weight by Adam with another beta from the first step on."""
    weight = torch.arange(1.0, 17.0).requires_grad_()
    optimizer = torch.optim.AdamW([weight])
    if number != 0.999:
        optimizer.param_groups[0]["betas"] = (0.9, number)  # beta
    weight.grad = torch.ones_like(weight)
    optimizer.step()


def test_an_option_of_several_numbers_is_named_where_it_is_set() -> None:
    """The recorded number is one of them, and the line sets both."""
    logs = logged(updated, 0.99), logged(updated, 0.999)
    found = culprit_between(*logs, "hyper", "betas.1 of weight")
    assert (found.line, found.kind) == (marked(HERE, "beta"), "setting"), found.text
