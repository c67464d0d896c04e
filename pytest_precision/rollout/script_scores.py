"""Have scripts and commands score on ranks of their own, and rule on what they have shown."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pytest_precision.check.side import Side
from pytest_precision.errors import RankError, SideFailed
from pytest_precision.matrix.cell import Cell
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.verdict import Ruling
from pytest_precision.ranks.code.import_path import ImportPath
from pytest_precision.ranks.pool import RankPool
from pytest_precision.rollout.recorded_scores import compare_scores
from pytest_precision.rollout.score_recording import recording_scores
from pytest_precision.trace.whole_recording import whole_recording


def scripts_scored(
    sides: Sequence[Side], ranks: RankPool, timeout: float, criteria: Criteria
) -> tuple[Ruling, dict[str, Any]]:
    """Record what candidate and reference show by `show_scores`, and compare it.

    Args:
        sides: both.
        ranks: of the session.
        timeout: seconds that each side may take.
        criteria: of the test.

    Raises:
        SideFailed: a rank failed, or showed nothing.
    """
    names = ("candidate", "reference")
    with TemporaryDirectory() as place:
        for name, side in zip(names, sides, strict=True):
            call = side.layout, side.cell, str(Path(place, name))
            try:
                ranks.run(
                    side.cell.world_size,
                    record_shown,
                    *call,
                    timeout=timeout,
                    needs=side.needs,
                    name=side.layout.name,
                )
            except RankError as error:
                raise SideFailed(name, error) from error
        ours, theirs = (whole_recording(name, Path(place, name)) for name in names)
        return compare_scores(ours, theirs, criteria)


def record_shown(script: ImportPath, cell: Cell, folder: str) -> None:
    """Run a script on this rank, and record what it shows.

    Its block of `record()` is open to all: nothing is recorded but what `show_scores` is given.
    """
    with recording_scores(Path(folder), Path(script.name), ()):
        script.resolve()(cell, nullcontext)
