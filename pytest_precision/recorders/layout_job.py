"""Layout job: all that one rank needs to build an engine, run it and write its trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pytest_precision.engine.engine import Engine
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.sequence import Segment
from pytest_precision.recorders.perturb.perturbation import NONE, Perturbation
from pytest_precision.trace.gradient_log import GradientLog
from pytest_precision.trace.moment import Window
from pytest_precision.trace.segment_folders import folder_of
from pytest_precision.workloads.base import Workload
from pytest_precision.workloads.recipe import TrainingRecipe

Layout = Callable[[Workload, Cell], Engine]


class LayoutJob(NamedTuple):
    """All that a rank needs to build an engine, run it up to the next restart and record it.

    Attributes:
        layout: makes the engine that is run.
        other: makes the engine that continues after `swap`, until the next one.
        workload: makes the workload; see `own_workload`.
        cell: its sequence is run; its layouts see the backend that was chosen.
        folder: an existing one, the same for all ranks.
        segment: the operations that are run.
        window: the train steps whose values are kept; None is the whole run.
        perturbation: what is done to the run.
        gradients: whether losses and gradients of a whole run are computed once more.
        known: the log of the other side, see `GradientOracle`.
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
    known: GradientLog | None = None

    def place(self) -> Path:
        """Create and return the folder in which this run's trace is placed."""
        place = folder_of(self.folder, self.segment.number)
        place.mkdir(exist_ok=True)
        return place

    def own_workload(self) -> Workload:
        """Return a new model-and-data workload for this run, reseeded for a perturbed start."""
        workload = self.workload()
        if isinstance(workload, TrainingRecipe):
            workload.seed += self.perturbation.start
        return workload
