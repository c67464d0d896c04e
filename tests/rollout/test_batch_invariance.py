"""Whether a row of a result depends on its batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pytest_precision.rollout.batch_invariance import batch_invariant

ROWS = torch.randn(9, 6, generator=torch.Generator().manual_seed(0))


def by_the_batch(x: Tensor) -> Tensor:
    """Sum in an order that the number of rows decides, as a kernel with tiles does."""
    order = torch.arange(x.shape[1]).roll(len(x) % 3)
    total = torch.zeros(len(x))
    for column in order.tolist():
        total = total + x[:, column]
    return total


def test_a_sum_in_another_order_is_named() -> None:
    """With the row, both values and the sizes of batches that change it."""
    ruling, _ = batch_invariant(by_the_batch, ROWS, "batch")
    assert ruling.outcome == "fail"
    assert "in a batch of 1" in ruling.reason
    assert "in one of 9" in ruling.reason
    assert ruling.details == ("batches of these sizes give other bytes than one of 9: 1, 2, 5, 8",)


def test_a_row_for_itself_passes() -> None:
    """Also one of a module with several inputs and results."""
    ruling, figures = batch_invariant(lambda x, y: (x * y, x.cumsum(-1)), (ROWS, ROWS), "batch")
    assert ruling.outcome == "pass"
    assert figures["observations"] == 108


@pytest.mark.parametrize(
    ("function", "outcome", "words"),
    [
        (torch.zeros_like, "vacuous", "all rows of the result are the same"),
        (torch.rand_like, "fail", "when it is called again"),
    ],
)
def test_what_proves_nothing_does_not_pass(function: object, outcome: str, words: str) -> None:
    """A constant agrees in any batch, and what is drawn at random with nothing."""
    ruling, _ = batch_invariant(function, ROWS, "batch")
    assert ruling.outcome == outcome
    assert words in ruling.reason


def test_other_inputs_are_refused() -> None:
    """What has no rows is to be bound, or it would be cut into batches."""
    with pytest.raises(TypeError, match=r"functools\.partial"):
        batch_invariant(torch.mul, (ROWS, 2), "batch")
    with pytest.raises(ValueError, match="same number of rows"):
        batch_invariant(torch.mul, (ROWS, ROWS[:3]), "batch")
