"""References that the checks of this folder record in the process of the tests once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import in_this_process  # noqa: F401
import pytest
from kept_inline import KeptInline

from pytest_precision import Cell, Parity


@pytest.fixture(scope="session")
def references() -> Iterator[KeptInline]:
    """What this process has recorded of references."""
    with closing(KeptInline()) as references:
        yield references


@pytest.fixture
def parity_here(parity_by: Callable[..., Parity], references: KeptInline) -> Callable[..., Parity]:
    """The fixture `parity` of a test in the given cell, in this process, by further settings."""

    def make(cell: Cell, **given: str) -> Parity:
        return replace(parity_by(cell, ranks="inline", **given), traces=references)

    return make


@pytest.fixture
def parity_there(
    parity_here: Callable[..., Parity], parity_in: Callable[[Cell], Parity]
) -> Callable[[Cell], Parity]:
    """The fixture `parity` of a test in the given cell: in this process if that is enough for it.

    It takes ranks for a group of several, and for a sequence that goes on in new processes.
    """

    def make(cell: Cell) -> Parity:
        restarts = any(segment.in_new_processes for segment in cell.segments)
        if cell.world_size > 1 or restarts:
            return parity_in(cell)
        return parity_here(cell, lines="off")

    return make
