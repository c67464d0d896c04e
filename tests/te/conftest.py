"""Fixtures of tests over the stand-in for Transformer Engine's kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest

from pytest_precision import Parity
from pytest_precision.matrix.declared import Declared
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources
from pytest_precision.ranks import ImportPath
from pytest_precision.ranks.needs import Needs
from pytest_precision.te import stand_in

RunOnRanks = Callable[..., list[Any]]

PRELOAD = ("pytest_precision.te.on_ranks",)
"""What all ranks of this folder are copies of: each group would import Transformer Engine anew."""


@pytest.fixture(scope="session")
def resources() -> Iterator[Resources]:
    """Rank groups and traces of this folder, whose ranks others would find too late to share."""
    resources = Resources()
    yield resources
    resources.close()


@pytest.fixture
def run_on_ranks(resources: Resources) -> RunOnRanks:
    """Run a function on so many ranks, which have imported Transformer Engine."""
    return resources.ranks(Settings(timeout=120, device="cpu", preload=PRELOAD)).run


@pytest.fixture
def parity_by(parity_by: Callable[..., Parity]) -> Callable[..., Parity]:
    """The fixture `parity` on ranks that have imported Transformer Engine."""
    return partial(parity_by, preload=PRELOAD)


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
