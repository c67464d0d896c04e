"""Fixtures of tests over the stand-in for Transformer Engine's kernels."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest

from pytest_precision.matrix.declared import Declared
from pytest_precision.ranks import ImportPath
from pytest_precision.ranks.needs import Needs
from pytest_precision.te import stand_in

RunOnRanks = Callable[..., list[Any]]


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
