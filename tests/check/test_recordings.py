"""A side that cannot be recorded is named, and what was recorded of it does not stay."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pytest_precision import layouts, workloads
from pytest_precision.check.recordings import Recordings
from pytest_precision.check.side import Side
from pytest_precision.errors import SideFailed
from pytest_precision.matrix.cell import Cell
from pytest_precision.ranks.code.import_path import ImportPath
from pytest_precision.ranks.state.sources import Sources
from pytest_precision.trace.cache import TraceCache
from pytest_precision.trace.moment import Window


def side(layout: object) -> Side:
    layouts_of_both = ImportPath.of(layout, "layout"), ImportPath.of(layouts.adamw, "other")
    return Side.of(*layouts_of_both, ImportPath.of(workloads.mlp, "workload"), Cell())


CANDIDATE, REFERENCE = side(layouts.master_adamw), side(layouts.adamw)


@pytest.fixture
def cache() -> Iterator[TraceCache]:
    with closing(TraceCache()) as cache:
        yield cache


@pytest.mark.parametrize(("full", "name"), [(CANDIDATE, "candidate"), (REFERENCE, "reference")])
def test_a_full_disk_is_the_failure_of_a_side(cache: TraceCache, full: Side, name: str) -> None:
    """The machine's trouble must not read as if numbers differed."""
    folders = []

    def record(recorded: Side, window: Window | None, folder: Path) -> Sources:
        folders.append(folder)
        if recorded == full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return Sources()

    recordings = Recordings(CANDIDATE, REFERENCE, record, cache)
    with closing(recordings), pytest.raises(SideFailed) as failed:
        recordings.both(None)
    assert failed.value.reason == f"the {name} failed: [Errno 28] No space left on device"
    assert not folders[-1].exists()
