"""Failures of these tests name no line: those of the catalogue do, of the same defects.

What they run depends on its arguments and its cell alone, so that they share ranks and references.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_precision import Parity


@pytest.fixture
def parity(parity: Parity) -> Parity:
    """The fixture of that name; the other recording of a failed check takes most of its time."""
    parity.settings = replace(parity.settings, lines="off", pure=True)
    return parity
