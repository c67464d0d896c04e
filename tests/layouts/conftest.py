"""Checks on real ranks, kept for the whole folder, without a pytest of their own around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pytest_precision.check.parity import Parity
from pytest_precision.matrix.cell import Cell
from pytest_precision.options import Settings
from pytest_precision.plugin.session import Resources


@pytest.fixture(scope="session")
def resources() -> Iterator[Resources]:
    """Rank groups and traces that all tests of this folder share."""
    resources = Resources()
    yield resources
    resources.close()


@pytest.fixture
def parity_in(resources: Resources) -> Callable[[Cell], Parity]:
    """The fixture `parity` of a test that runs in the given cell."""
    settings = Settings(timeout=120, device="cpu")

    def make(cell: Cell) -> Parity:
        return Parity("test", cell, settings, resources.ranks(settings), resources.traces)

    return make
