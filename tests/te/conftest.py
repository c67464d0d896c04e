"""Fixtures of tests over the stand-in for Transformer Engine's kernels."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError

import pytest

from pytest_precision.matrix.declared import Declared
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources
from pytest_precision.ranks.code.import_path import ImportPath
from pytest_precision.ranks.needs import Needs
from pytest_precision.te import stand_in


@pytest.fixture
def on_a_rank(resources: Resources) -> Callable[[Callable[[], object]], object]:
    """Run a function on one rank, as the fixture `ranks` does."""
    run = _running(resources)
    return lambda function: run(function, 1)[0]


@pytest.fixture
def on_two_ranks(resources: Resources) -> Callable[[Callable[[], object]], list[object]]:
    """Run a function on two ranks, and return what each of them returned."""
    run = _running(resources)
    return lambda function: run(function, 2)


def _running(resources: Resources) -> Callable[[Callable[[], object], int], list[object]]:
    pool = resources.ranks(Settings(timeout=120, device="cpu"))

    def run(function: Callable[[], object], number: int) -> list[object]:
        path = ImportPath.of(function, "function")
        return pool.run(number, path, needs=Needs.of(path, Declared.of(function)))

    return run


@pytest.fixture
def without_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wheel of Transformer Engine, whatever is installed here."""

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(stand_in, "version", missing)
