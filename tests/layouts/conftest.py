"""Ranks that the tests of layouts share, whatever code of theirs runs there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from any_code import of_any_code
from kept_inline import KeptInline

from pytest_precision import Cell, Parity
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources


@pytest.fixture
def parity_alone(parity_by: Callable[..., Parity]) -> Callable[[Cell], Parity]:
    """The fixture `parity` of a test in the given cell, on ranks that a session would give it.

    For tests of what other code would find there, or leave.
    """
    return lambda cell: parity_by(cell, lines="off", shared=False)


@pytest.fixture
def parity_by(parity_by: Callable[..., Parity]) -> Callable[..., Parity]:
    """The fixture `parity` of a test in the given cell, by the given settings, on shared ranks."""

    def make(cell: Cell, *, shared: bool = True, **given: Any) -> Parity:
        parity = parity_by(cell, **given)
        return replace(parity, ranks=of_any_code(parity.ranks)) if shared else parity

    return make


@pytest.fixture(scope="session")
def references() -> Iterator[KeptInline]:
    """What this process has recorded of references."""
    with closing(KeptInline()) as references:
        yield references


@pytest.fixture
def parity_there(
    parity_by: Callable[..., Parity],
    parity_in: Callable[[Cell], Parity],
    references: KeptInline,
) -> Callable[[Cell], Parity]:
    """The fixture `parity` of a test in the given cell: in this process if one rank is enough."""

    def make(cell: Cell) -> Parity:
        if cell.world_size > 1:
            return parity_in(cell)
        return replace(parity_by(cell, lines="off", ranks="inline"), traces=references)

    return make


@pytest.fixture
def run_on_ranks(resources: Resources) -> Callable[..., list[Any]]:
    """Run a function on so many ranks on the CPU, and return what each of them returned."""
    return of_any_code(resources.ranks(Settings(timeout=120, device="cpu"))).run
