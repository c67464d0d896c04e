"""Checks and recordings of scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import partitioned
import pytest
import resumable
import unchanged
from package_probes import OF_LOOPS

from pytest_precision import Cell, Parity
from pytest_precision.ranks import ImportPath, RankPool
from pytest_precision.ranks.needs import Needs
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
        cell = Cell(sequence=sequence or f"train{steps}")
        record_script(script, cell, tmp_path, window, probes=OF_LOOPS)
        return Trace(tmp_path, 1)

    return record


MODULES = tuple(
    ImportPath.of(loop).home for loop in (partitioned.flat, resumable.trainer, unchanged.ddp)
)
"""Modules of loops that several files train."""


class ScriptRanks(RankPool):
    """Runs loops on ranks that have run others: functions of test files, which change no module.

    A session has new ranks for each function of the user's, which may change what others find.
    """

    def run(self, world_size: int, *job: Any, needs: Needs | None = None, **more: Any) -> list[Any]:
        """Run a job on ranks that have run others of its module."""
        needs = needs or Needs()
        code = dict.fromkeys((*MODULES, *(path.home for path in needs.code)))
        return super().run(world_size, *job, needs=replace(needs, code=tuple(code)), **more)


@pytest.fixture(scope="session")
def script_ranks() -> Iterator[ScriptRanks]:
    """Ranks that the loops of all files share."""
    with closing(ScriptRanks(timeout=120)) as ranks:
        yield ranks


@pytest.fixture
def parity_shared(
    parity_by: Callable[..., Parity], script_ranks: ScriptRanks
) -> Callable[[Cell], Parity]:
    """The fixture `parity` of a test in the given cell, on ranks that all loops share."""

    def make(cell: Cell) -> Parity:
        return replace(parity_by(cell, lines="off"), ranks=script_ranks)

    return make
