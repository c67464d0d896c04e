"""A loop whose embedding has sparse gradients is recorded as one that has dense ones."""

from __future__ import annotations

from functools import partial

import torch
import unchanged
from checked import ParityIn, failed
from torch import nn

from pytest_precision import Cell, script

STEPS = 2
CELL = Cell(sequence=f"train{STEPS}")


@script
def loop(cell: Cell, record: unchanged.Record, sparse: bool = True, factor: float = 1.0) -> None:
    """Train a table of which each step reads two rows."""
    table = nn.Embedding(6, 4, sparse=sparse)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    with record():
        for step in range(STEPS):
            table(torch.tensor([step, 4])).square().sum().backward()
            table.weight.grad = table.weight.grad * factor
            optimizer.step()
            optimizer.zero_grad()


def test_sparse_gradients_have_the_bits_of_dense_ones(parity_there: ParityIn) -> None:
    """Their values are compared; a row that is not there is zero."""
    verdict = parity_there(CELL).check(loop, partial(loop, sparse=False))
    assert verdict.outcome == "pass"
    assert "reduced_grad" not in verdict.left_out


def test_a_wrong_sparse_gradient_is_named(parity_there: ParityIn) -> None:
    """Where it differs first; the loss does not show it."""
    verdict = failed(parity_there(CELL), partial(loop, factor=3.0), loop)
    assert verdict.divergence is not None
    assert (verdict.divergence.kind, verdict.divergence.step) == ("reduced_grad", 1)
