"""Layout job: a layout, and the part of its sequence that is run once more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.segments import Segment
from pytest_precision.recorders.engine_recorder import Layout
from pytest_precision.recorders.run_environment import with_backend
from pytest_precision.trace.segment_folders import folder_of
from pytest_precision.workloads.base import Workload


class LayoutJob(NamedTuple):
    """What is run of a layout; see `record_engine`.

    Attributes:
        layout: makes the engine that is run.
        other: makes the engine after a `swap`.
        workload: makes the workload.
        cell: its sequence is run.
        folder: an existing one, the same for all ranks.
        segment: the operations that are run.
    """

    layout: Layout
    other: Layout
    workload: Callable[[], Workload]
    cell: Cell
    folder: Path
    segment: Segment

    def arguments(self) -> tuple[Layout, Layout, Workload, Cell, Path]:
        """Return what a run is made with, with the backend that its layouts see."""
        cell, _ = with_backend(self.cell)
        return self.layout, self.other, self.workload(), cell, self.folder

    def place(self) -> Path:
        """Return the folder of the segment, which is there afterwards."""
        place = folder_of(self.folder, self.segment.number)
        place.mkdir(exist_ok=True)
        return place
