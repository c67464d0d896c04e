"""Failures of these tests are run once more, to name a line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_precision import Cell, Parity
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources


@pytest.fixture
def parity_in(resources: Resources) -> Callable[[Cell], Parity]:
    """The fixture `parity` of a test in the given cell, on real ranks."""
    settings = Settings(timeout=120, device="cpu")

    def make(cell: Cell) -> Parity:
        return Parity("test", cell, settings, resources.ranks(settings), resources.traces)

    return make
