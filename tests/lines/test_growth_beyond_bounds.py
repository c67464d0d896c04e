"""Ranks against one, within a tolerance: the first operation beyond the bound is named."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from marked_lines import marked
from torch import Tensor
from wrong_engines import WORKLOAD, Right, made, of

from pytest_precision import Cell, Engine, Parity, ParityError, norm

FILE = Path(__file__)


class DoublesLosses(Engine):
    """The backward begins with twice the loss."""

    def backward(self, loss: Tensor) -> None:
        super().backward(loss * 2)  # DoublesLosses


class DoublesSums(Engine):
    """The sum over ranks is made twice."""

    def reduce_grads(self) -> None:
        super().reduce_grads()
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(2)  # DoublesSums


@pytest.mark.parametrize("kind", [DoublesLosses, DoublesSums])
def test_the_first_operation_beyond_the_bound_is_named(
    parity_in: Callable[[Cell], Parity], kind: type[Engine]
) -> None:
    """Each rank has others of the microbatches, and what it adds up alone is a part of a sum."""
    cell = Cell(sequence="train2", world_size=2)
    with pytest.raises(ParityError) as failure:
        parity_in(cell).check(
            partial(made, kind=kind),
            of(Right),
            workload=WORKLOAD,
            reference_cell=cell.replace(world_size=1),
            criterion=norm(rel=1e-4),
        )
    culprit = failure.value.verdict.culprit
    assert culprit is not None, failure.value.verdict.details
    assert culprit.line == marked(FILE, kind.__name__), culprit.text
