"""Unread: which axes of the user's own nothing has read from the cell of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.reads import reads

READS = pytest.StashKey[set[str]]()


@contextmanager
def noted(item: pytest.Item) -> Iterator[None]:
    """Keep with a test the names of the axes that are read in the block."""
    with reads() as item.stash[READS]:
        yield


def unread(item: pytest.Item, cell: Cell) -> list[str]:
    """List the axes of the user's own that nothing has read from the cell of a test so far."""
    return [name for name, _ in cell.extra if name not in item.stash.get(READS, ())]
