"""All data that one rank needs to build and run an engine, and to write its recording."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pytest_precision.engine.engine import Engine
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.sequence import Segment
from pytest_precision.recorders.rank_probes import RankProbe
from pytest_precision.recorders.run_environment import FRESH_SEED, SEED
from pytest_precision.recorders.variant import USUAL, Variant
from pytest_precision.trace.moment import EVERYTHING, Window
from pytest_precision.trace.rank_log import RankLog
from pytest_precision.trace.segment_folders import folder_of
from pytest_precision.workloads.base import Workload
from pytest_precision.workloads.recipe import TrainingRecipe

Layout = Callable[[Workload, Cell], Engine]


class LayoutJob(NamedTuple):
    """All data with which a rank builds an engine, runs it up to the next restart and records it.

    Attributes:
        layout: makes the engine that is run.
        other: makes the engine that continues after `swap`, until the next one.
        workload: makes the workload; see `own_workload`.
        cell: its sequence is run; its layouts see the backend that was chosen.
        folder: an existing one, the same for all ranks.
        segment: the operations that are run.
        window: the train steps whose values are kept; None is the whole run.
        variant: how the run differs from the usual one.
        other_log: what was found out of the other side, see `GradientOracle`.
        pause: called before each phase of a train step, see `delays`; None in a run without delays.
        probes: what judgements record beside the run.
    """

    layout: Layout
    other: Layout
    workload: Callable[[], Workload]
    cell: Cell
    folder: Path
    segment: Segment
    window: Window | None = None
    variant: Variant = USUAL
    other_log: RankLog | None = None
    pause: Callable[[], None] | None = None
    probes: tuple[RankProbe, ...] = ()

    def place(self) -> Path:
        """Create and return the folder into which this run's trace is written."""
        place = folder_of(self.folder, self.segment.number)
        place.mkdir(exist_ok=True)
        return place

    @property
    def is_whole(self) -> bool:
        """Return whether all phases of all steps are looked at.

        Updates and gradients are judged of such runs: what is recorded again explains something.
        """
        return self.window in (None, EVERYTHING) and not self.variant.ends_only

    @property
    def seed(self) -> int:
        """Return the seed of the weights that the run starts with; a checkpoint overwrites them."""
        return FRESH_SEED if self.segment.number else SEED + self.variant.start

    def own_workload(self) -> Workload:
        """Make this run's workload; add `variant.start` to its seed if it is built-in."""
        workload = self.workload()
        if isinstance(workload, TrainingRecipe):
            workload.seed += self.variant.start
        return workload
