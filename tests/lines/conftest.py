"""Failures of these tests are run once more, to name a line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_precision import Cell, Parity


@pytest.fixture
def parity_in(parity_by: Callable[..., Parity]) -> Callable[[Cell], Parity]:
    """The fixture `parity` of a test in the given cell, on real ranks."""
    return parity_by
