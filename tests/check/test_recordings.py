"""A side that cannot be recorded is named, and what was recorded of it does not stay."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pytest_precision import Cell, layouts, workloads
from pytest_precision.check.recordings import Recordings
from pytest_precision.check.side import Side
from pytest_precision.errors import SideFailed
from pytest_precision.ranks.code.import_path import ImportPath
from pytest_precision.ranks.pool import RankPool
from pytest_precision.trace.cache import TraceCache


def side(layout: object, cell: Cell = Cell()) -> Side:  # noqa: B008 (cells do not change)
    layouts_of_both = ImportPath.of(layout, "layout"), ImportPath.of(layouts.adamw, "other")
    return Side.of(*layouts_of_both, ImportPath.of(workloads.mlp, "workload"), cell)


CANDIDATE, REFERENCE = side(layouts.master_adamw), side(layouts.adamw)


@pytest.fixture
def cache() -> Iterator[TraceCache]:
    with closing(TraceCache()) as cache:
        yield cache


class FullDisk(RankPool):
    """Ranks of this process whose disk is full when they record one of the sides."""

    def __init__(self, full: Side) -> None:
        super().__init__("inline")
        self.full, self.folders = full, list[Path]()

    def run(self, world_size: int, function: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """Run out of space, or write nothing and say that something was observed."""
        recorded, folder = args[:2]
        self.folders.append(Path(folder))
        if recorded == self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return [1] * world_size


@pytest.mark.parametrize(("full", "name"), [(CANDIDATE, "candidate"), (REFERENCE, "reference")])
def test_a_full_disk_is_the_failure_of_a_side(cache: TraceCache, full: Side, name: str) -> None:
    """The machine's trouble must not read as if numbers differed."""
    with closing(FullDisk(full)) as ranks:
        recordings = Recordings(CANDIDATE, REFERENCE, ranks, cache, timeout=60)
        with closing(recordings), pytest.raises(SideFailed) as failed:
            recordings.both(None)
    assert failed.value.reason == f"the {name} failed: [Errno 28] No space left on device"
    assert not ranks.folders[-1].exists()


@pytest.mark.parametrize("same", [True, False])
def test_right_gradients_of_the_reference_hold_in_the_same_cell(
    cache: TraceCache, same: bool
) -> None:
    """In another cell a workload may give others, also where both sides show the same."""
    cell = Cell(sequence="train")
    other = cell if same else Cell(sequence="train", extra=(("glu", 1),))
    reference, candidate = side(layouts.adamw, cell), side(layouts.adamw, other)
    with closing(RankPool("inline")) as ranks:
        recordings = Recordings(candidate, reference, ranks, cache, timeout=60)
        with closing(recordings):
            log = recordings.theirs(None).trace.folder / "gradients.json"
            found = json.loads(log.read_text())
            planted = dict.fromkeys(found["right"], (1_000_000, 0.5))
            log.write_text(json.dumps(found | {"right": planted}))
            judged = recordings.ours(None).gradients.judged
    assert (judged == 1_000_000) == same
