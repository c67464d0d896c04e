"""Failures of these tests are run once more, to name a line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from kept_inline import KeptInline
from wrong_engines import WORKLOAD, chosen

from pytest_precision import Cell, Parity, ParityError, Verdict


@pytest.fixture
def parity_in(parity_by: Callable[..., Parity]) -> Callable[[Cell], Parity]:
    """The fixture `parity` of a test in the given cell, on real ranks."""
    return parity_by


@pytest.fixture(scope="module")
def references() -> Iterator[KeptInline]:
    """What is recorded once for the tests of a module."""
    with closing(KeptInline()) as kept:
        yield kept


@pytest.fixture
def parity_here(
    parity_by: Callable[..., Parity], references: KeptInline
) -> Callable[[Cell], Parity]:
    """The fixture `parity` of a test in the given cell, which records in this process.

    Where a line is not about ranks, this names the same one, and starts none.
    """

    def make(cell: Cell) -> Parity:
        parity = parity_by(cell, ranks="inline")
        parity.traces = references
        return parity

    return make


@pytest.fixture
def verdict_on_ranks(parity_in: Callable[[Cell], Parity]) -> Callable[[str, int], Verdict]:
    """Returns the verdict on a wrong engine beside the right one, both on the same real ranks."""

    def verdict(engine: str, world_size: int) -> Verdict:
        cell = Cell(sequence="train2", world_size=world_size, extra=(("engine", engine),))
        right = cell.replace(engine="Right")
        with pytest.raises(ParityError) as failure:
            parity_in(cell).check(chosen, chosen, workload=WORKLOAD, reference_cell=right)
        return failure.value.verdict

    return verdict
