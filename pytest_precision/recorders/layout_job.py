"""All data that one rank needs to build, run and perturb an engine, and to write its trace."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

from pytest_precision.engine.engine import Engine
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.sequence import Segment
from pytest_precision.recorders.run_environment import FRESH_SEED, SEED
from pytest_precision.trace.gradient_log import GradientLog
from pytest_precision.trace.moment import Window
from pytest_precision.trace.segment_folders import folder_of
from pytest_precision.workloads.base import Workload
from pytest_precision.workloads.recipe import TrainingRecipe

Layout = Callable[[Workload, Cell], Engine]


class Perturbation(NamedTuple):
    """The deliberate changes to one training run, such as delays or a planted defect; default none.

    Attributes:
        pause: called before each phase of a train step, see `delays`; None in a run without delays.
        mutant: name of the mutant that is planted into each engine; empty for none.
        noise: number of the run whose operations are rounded at random; 0 for none.
        ends_only: whether only what a train step leaves is looked at. Any look in between waits for
            the device, and so may heal the race that is looked for.
        start: number of another start, which has other weights and, of a workload of this package,
            other data; 0 for the one that all runs have.
    """

    pause: Callable[[], None] | None = None
    mutant: str = ""
    noise: int = 0
    ends_only: bool = False
    start: int = 0

    def wait(self) -> None:
        """Sleep on this rank if it is the one that the run makes late."""
        if self.pause is not None:
            self.pause()

    def plant(self, engine: Engine) -> None:
        """Plant the run's defect, if it has one, into an engine that has just been built.

        Raises:
            NotPlantedError: see `mutants.planted`.
        """
        if self.mutant:
            from pytest_precision.recorders.perturb.mutants import planted

            planted(self.mutant, engine)

    def rounding(self, engine: Engine, phase: str, step: int) -> AbstractContextManager[object]:
        """Return a context that rounds operations inside at random; a null context without `noise`.

        Args:
            engine: that runs it.
            phase: that is run.
            step: the train step.
        """
        if not self.noise:
            return nullcontext()
        from pytest_precision.recorders.perturb.rounding_noise import rounding_noise

        return rounding_noise(self.noise, engine, phase, step)


NONE = Perturbation()


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
        perturbation: what is done to the run.
        gradients: whether losses and gradients of a whole run are computed once more.
        other_log: of the other side's gradients, see `GradientOracle`.
        updates: whether weight updates of a whole run are measured and judged.
        bare: whether nothing is recorded by which the run is judged alone.
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
    other_log: GradientLog | None = None
    updates: bool = True
    bare: bool = False

    def place(self) -> Path:
        """Create and return the folder into which this run's trace is written."""
        place = folder_of(self.folder, self.segment.number)
        place.mkdir(exist_ok=True)
        return place

    @property
    def seed(self) -> int:
        """Return the seed of the weights that the run starts with; a checkpoint overwrites them."""
        return FRESH_SEED if self.segment.number else SEED + self.perturbation.start

    def own_workload(self) -> Workload:
        """Make this run's workload; add `perturbation.start` to its seed if it is built-in."""
        workload = self.workload()
        if isinstance(workload, TrainingRecipe):
            workload.seed += self.perturbation.start
        return workload
