"""Fixtures of tests over the stand-in for Transformer Engine's kernels."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from pytest_precision import Cell, Parity
from pytest_precision.matrix.declared import Declared
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources
from pytest_precision.ranks import ImportPath
from pytest_precision.ranks.needs import Needs
from pytest_precision.te import stand_in

RunOnRanks = Callable[..., list[Any]]

PRELOAD = ("pytest_precision.te.on_ranks",)
"""What ranks here are copies of: each group would import Transformer Engine anew."""

APART = ("test_emulated", "test_plugin", "test_record_te")
"""Files whose ranks are copies of a process that has not imported it."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run those files first: a fork server is replaced where ranks need other imports."""
    inside = f"{Path(__file__).parent}{os.sep}"
    places = [place for place, item in enumerate(items) if str(item.path).startswith(inside)]
    # The order within a file, and of the others, stays.
    in_turn = sorted(
        (items[place] for place in places), key=lambda item: item.path.stem not in APART
    )
    for place, item in zip(places, in_turn, strict=True):
        items[place] = item


@pytest.fixture(scope="session")
def te_resources() -> Iterator[Resources]:
    """Rank groups and traces of tests whose ranks have all imported Transformer Engine."""
    resources = Resources()
    yield resources
    resources.close()


@pytest.fixture
def run_on_ranks(te_resources: Resources) -> RunOnRanks:
    """Run a function on so many ranks, which have imported Transformer Engine."""
    return te_resources.ranks(Settings(timeout=120, device="cpu", preload=PRELOAD)).run


@pytest.fixture
def parity_in(te_resources: Resources) -> Callable[[Cell], Parity]:
    """The fixture `parity` of a test both of whose sides are Transformer Engine's."""

    def make(cell: Cell) -> Parity:
        settings = Settings(timeout=120, device="cpu", pure=True, lines="off", preload=PRELOAD)
        ranks, traces = te_resources.ranks(settings), te_resources.traces
        return Parity("test", cell, settings, ranks, traces)

    return make


@pytest.fixture
def parity_apart(parity_by: Callable[..., Parity]) -> Callable[[Cell], Parity]:
    """The fixture `parity` of a test one of whose sides is this package's emulation.

    Its ranks import what they run: where Transformer Engine is imported, torch calls the CPU
    `cuda`, for which the emulation computes otherwise.
    """
    return partial(parity_by, lines="off")


@pytest.fixture
def on_a_rank(run_on_ranks: RunOnRanks) -> Callable[[Callable[[], object]], object]:
    """Run a function on one rank, as the fixture `ranks` does."""
    return lambda function: _run(run_on_ranks, function, 1)[0]


@pytest.fixture
def on_two_ranks(run_on_ranks: RunOnRanks) -> Callable[[Callable[[], object]], list[object]]:
    """Run a function on two ranks, and return what each of them returned."""
    return lambda function: _run(run_on_ranks, function, 2)


def _run(run_on_ranks: RunOnRanks, function: Callable[[], object], number: int) -> list[object]:
    path = ImportPath.of(function, "function")
    return run_on_ranks(number, path, needs=Needs.of(path, Declared.of(function)))


@pytest.fixture
def without_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wheel of Transformer Engine, whatever is installed here."""

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(stand_in, "version", missing)
