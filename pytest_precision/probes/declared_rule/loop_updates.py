"""Measure how much of each update of a loop rounding loses."""

from __future__ import annotations

from pathlib import Path

from torch.optim import Optimizer

from pytest_precision.probes.lost_updates.measured import UpdateMeter
from pytest_precision.recorders.loop_job import LoopJob
from pytest_precision.recorders.probe import Probe
from pytest_precision.recorders.scripts.steps import Steps
from pytest_precision.recorders.weights import Watched
from pytest_precision.trace.moment import EVERYTHING


class LoopUpdates(Probe[Steps]):
    """Measures each `step` of each optimizer in a train step.

    Args:
        measures: whether it does; it writes an empty log otherwise.
    """

    def __init__(self, *, measures: bool) -> None:
        self._measures = measures
        self._meter = UpdateMeter()
        self._optimizer: Optimizer | None = None
        self._watched: list[Watched] = []

    def before(self, run: Steps, call: str) -> None:
        """Copy the weights that an optimizer is about to update."""
        if call == "optimizer_step" and self._measures:
            self._optimizer, self._watched = run.optimizer, []
            if run.schedule.operation == "train":
                # An optimizer that runs others is not measured; those that it runs are.
                weights = run.reader.updated_by(run.optimizer)
                self._watched = self._meter.before(run.optimizer, weights)

    def after(self, run: Steps, call: str) -> None:
        """Measure how the weights moved."""
        if call == "optimizer_step" and self._watched and run.optimizer is self._optimizer:
            self._meter.after(run.optimizer, self._watched, run.step)
            self._watched = []

    def write(self, folder: Path, rank: int) -> None:
        """Write the lost updates of all steps."""
        self._meter.write(folder, rank)


def loop_updates(job: LoopJob) -> LoopUpdates:
    """Return the probe of a loop; it measures whole runs in cells only."""
    is_whole = job.window in (None, EVERYTHING)
    return LoopUpdates(measures=is_whole and job.variant is not None)
