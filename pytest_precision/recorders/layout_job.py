"""Layout job: what one rank is told to run of a layout, and where to write what it shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pytest_precision.engine.engine import Engine
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.sequence import Segment
from pytest_precision.recorders.perturb.perturbation import NONE, Perturbation
from pytest_precision.trace.gradient_log import KnownSteps
from pytest_precision.trace.moment import Window
from pytest_precision.trace.segment_folders import folder_of
from pytest_precision.workloads.base import Workload

Layout = Callable[[Workload, Cell], Engine]


class LayoutJob(NamedTuple):
    """One segment of a layout's sequence, as each rank runs it.

    Attributes:
        layout: makes the engine that is run.
        other: makes the engine that continues after `swap`, until the next one.
        workload: makes the workload.
        cell: its sequence is run; its layouts see the backend that was chosen.
        folder: an existing one, the same for all ranks.
        segment: the operations that are run.
        window: the train steps whose values are kept; None is the whole run.
        perturbation: what is done to the run on purpose.
        gradients: whether losses and gradients of a whole run are computed once more.
        known: what was found out of the gradients of the other side, see `GradientOracle`.
    """

    layout: Layout
    other: Layout
    workload: Callable[[], Workload]
    cell: Cell
    folder: Path
    segment: Segment
    window: Window | None = None
    perturbation: Perturbation = NONE
    gradients: bool = True
    known: KnownSteps | None = None

    def place(self) -> Path:
        """Return the folder of the segment, which is there afterwards."""
        place = folder_of(self.folder, self.segment.number)
        place.mkdir(exist_ok=True)
        return place
