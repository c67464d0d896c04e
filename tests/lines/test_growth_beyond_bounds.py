"""Ranks against one, within a tolerance: the first operation beyond the bound is named."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import sharded_products
from marked_lines import marked
from torch import Tensor
from wrong_engines import WORKLOAD, Right, made, of

from pytest_precision import Cell, Engine, Parity, ParityError, norm
from pytest_precision.parity.culprit import Culprit

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


def tensor_parallel(
    parity_in: Callable[[Cell], Parity], rel: float, **given: bool
) -> Culprit | None:
    """Return the culprit of a layer that is spread over two ranks, against one."""
    cell = Cell(precision="fp32", sequence="train2", world_size=2)
    with pytest.raises(ParityError) as failure:
        parity_in(cell).check(
            partial(sharded_products.trained, **given),
            sharded_products.trained,
            reference_cell=cell.replace(world_size=1),
            criterion=norm(rel=rel),
        )
    return failure.value.verdict.culprit


def test_a_part_of_a_sum_that_no_collective_adds_up_is_named(
    parity_in: Callable[[Cell], Parity],
) -> None:
    """The update reads what each rank has made of its own shard."""
    culprit = tensor_parallel(parity_in, 1e-4, adds_up=False)
    assert culprit is not None
    assert culprit.text.startswith("no collective adds up what each rank has a part of"), culprit
    assert culprit.line == marked(Path(sharded_products.__file__), "Spread")


def test_parts_that_a_collective_adds_up_are_as_they_should_be(
    parity_in: Callable[[Cell], Parity],
) -> None:
    """Where a bound is too tight for another order of sums, none of them is named."""
    culprit = tensor_parallel(parity_in, 1e-12)
    assert culprit is None or "mm" not in culprit.operation, culprit
