"""A side that cannot be recorded is named, and what was recorded of it does not stay."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from package_probes import OF_ENGINES

from pytest_precision import Cell, layouts, workloads
from pytest_precision.check.recordings import Recordings
from pytest_precision.check.side import Side
from pytest_precision.errors import SideFailed
from pytest_precision.probes.gradients.gradient_log import GradientLog
from pytest_precision.ranks import ImportPath, RankPool
from pytest_precision.trace.cache import TraceCache


def side(layout: object, cell: Cell = Cell()) -> Side:  # noqa: B008 (cells do not change)
    layouts_of_both = ImportPath.of(layout, "layout"), ImportPath.of(layouts.adamw, "other")
    unwatched = Side.of(*layouts_of_both, ImportPath.of(workloads.mlp, "workload"), cell)
    return unwatched.watched_by(OF_ENGINES)


CANDIDATE, REFERENCE = side(layouts.master_adamw), side(layouts.adamw)


@pytest.fixture
def cache() -> Iterator[TraceCache]:
    with closing(TraceCache()) as cache:
        yield cache


class OutOfResources(RankPool):
    """Ranks of this process that the system refuses a file when they record one of the sides."""

    def __init__(self, refused: Side, number: int) -> None:
        super().__init__("inline")
        self.refused, self.number, self.folders = refused, number, list[Path]()

    def run(self, world_size: int, function: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """Fail, or write nothing and say that something was observed."""
        recorded, folder = args[:2]
        self.folders.append(Path(folder))
        if recorded == self.refused:
            raise OSError(self.number, os.strerror(self.number))
        return [1] * world_size


@pytest.mark.parametrize(
    ("refused", "name", "number", "remedy"),
    [
        (
            CANDIDATE,
            "candidate",
            errno.ENOSPC,
            "recordings are in the temporary folder, or in TMPDIR",
        ),
        (REFERENCE, "reference", errno.EMFILE, "allow more open files: `ulimit -n 4096`"),
    ],
)
def test_what_the_machine_refuses_is_the_failure_of_a_side(
    cache: TraceCache, refused: Side, name: str, number: int, remedy: str
) -> None:
    """The machine's trouble must not read as if numbers differed, and ends with its remedy."""
    with closing(OutOfResources(refused, number)) as ranks:
        recordings = Recordings(CANDIDATE, REFERENCE, ranks, cache, timeout=60)
        with closing(recordings), pytest.raises(SideFailed) as failed:
            recordings.both(None)
    said = f"the {name} failed: [Errno {number}] {os.strerror(number)}; "
    assert failed.value.reason.startswith(said)
    assert failed.value.reason.endswith(remedy)
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
            judged = recordings.ours(None).log(GradientLog).judged
    assert (judged == 1_000_000) == same
