"""Checks and recordings of scripts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_precision.check.parity import Parity
from pytest_precision.matrix.cell import Cell
from pytest_precision.options import Settings
from pytest_precision.plugin.session import Resources
from pytest_precision.recorders.scripts.runs import record_script
from pytest_precision.trace.moment import EVERYTHING, Window
from pytest_precision.trace.store import Trace


@pytest.fixture
def parity_in(resources: Resources) -> Callable[[Cell], Parity]:
    """The fixture `parity` of a test in the given cell; a single rank is this process itself."""

    def make(cell: Cell) -> Parity:
        ranks = "inline" if cell.world_size == 1 else "reuse"
        settings = Settings(timeout=120, device="cpu", ranks=ranks)
        return Parity("test", cell, settings, resources.ranks(settings), resources.traces)

    return make


@pytest.fixture
def recorded(one_rank: None, tmp_path: Path) -> Callable[..., Trace]:
    """Record a script in this process, which is the only rank."""

    def record(
        script: Callable[..., None],
        steps: int = 2,
        window: Window | None = EVERYTHING,
        sequence: str = "",
    ) -> Trace:
        record_script(script, Cell(sequence=sequence or f"train{steps}"), tmp_path, window)
        return Trace(tmp_path, 1)

    return record
