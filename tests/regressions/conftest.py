"""Failures of these tests name no line: those of the catalogue do, of the same defects."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_precision import Parity


@pytest.fixture
def parity(parity: Parity) -> Parity:
    """The fixture of that name; the other recording of a failed check takes most of its time."""
    parity.settings = replace(parity.settings, lines="off")
    return parity
