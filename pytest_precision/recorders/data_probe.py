"""Log digests of the microbatches that the workload gives to a run.

Every run of an engine has this probe: a workload may yield its microbatches one by one, and all
runs of a side must draw them at the same time, before the step.
"""

from __future__ import annotations

from pathlib import Path

from pytest_precision.recorders.engine_run import EngineRun
from pytest_precision.recorders.probe import Probe
from pytest_precision.trace.data_log import DataWatch


class DataProbe(Probe[EngineRun]):
    """Logs each microbatch from the start, so that runs on other data are told apart."""

    def begin(self, run: EngineRun) -> None:
        """Watch the workload, before an engine asks it for data."""
        self._watch = DataWatch(run.workload)

    def write(self, folder: Path, rank: int) -> None:
        """Write the log; later requests for data are not part of training."""
        self._watch.write(folder, rank)
