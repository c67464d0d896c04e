"""Failures of these tests name no line: those of the catalogue do, of the same defects.

What they run depends on its arguments and its cell alone, so that they share ranks and references.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from any_code import of_any_code

from pytest_precision import Parity, Ranks


@pytest.fixture
def parity(parity: Parity) -> Parity:
    """The fixture of that name; the other recording of a failed check takes most of its time."""
    parity.settings = replace(parity.settings, lines="off", pure=True)
    parity.ranks = of_any_code(parity.ranks)
    return parity


@pytest.fixture
def ranks(ranks: Ranks) -> Ranks:
    """The fixture of that name, with the ranks of the checks."""
    ranks._ranks = of_any_code(ranks._ranks)
    return ranks
