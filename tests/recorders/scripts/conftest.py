"""Checks and recordings of scripts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_precision import Cell
from pytest_precision.recorders.scripts.script_recorder import record_script
from pytest_precision.trace.moment import EVERYTHING, Window
from pytest_precision.trace.reader import Trace


@pytest.fixture
def recorded(one_rank: None, few_objects: None, tmp_path: Path) -> Callable[..., Trace]:
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
