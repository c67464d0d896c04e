"""Store a few train steps, and compare their losses and gradients with recomputed ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_precision.probes.gradients.gradient_log import GradientLog
from pytest_precision.probes.gradients.gradient_oracle import GradientOracle
from pytest_precision.recorders.engine_run import EngineRun
from pytest_precision.recorders.layout_job import LayoutJob
from pytest_precision.recorders.probe import Probe


class GradientProbe(Probe[EngineRun]):
    """Stores what a step computes from and gives; at the end, the workload computes it once more.

    Args:
        judges: whether the test has gradients judged.
        other_log: the log of the other side, see `GradientOracle`.
    """

    oracle: GradientOracle

    def __init__(self, *, judges: bool = True, other_log: GradientLog | None = None) -> None:
        self._judges = judges
        self._other_log = other_log

    def begin(self, run: EngineRun) -> None:
        """Make what stores the steps."""
        self.oracle = GradientOracle(
            run.workload, run.cell, enabled=self._judges, other_log=self._other_log
        )

    @contextmanager
    def around(self, run: EngineRun, call: str) -> Iterator[None]:
        """Store a step around its forward and backward, and its gradients once they are reduced."""
        if call == "operation" and run.operation != "train":
            self.oracle.interrupted()
        if call == "forward_backward":
            with self.oracle.around(run.engine, run.step):
                yield
        else:
            yield
        if call == "reduce_grads":
            self.oracle.reduced(run.engine, run.step)

    def write(self, folder: Path, rank: int) -> None:
        """Compute the steps once more, and write how they compare; all ranks must call this."""
        self.oracle.write(folder, rank)


def gradient_probe(job: LayoutJob) -> GradientProbe | None:
    """Return the probe of a whole run that nothing disturbs; None for others."""
    if not job.is_whole or job.variant.is_perturbed:
        return None
    log = job.other_log if isinstance(job.other_log, GradientLog) else None
    return GradientProbe(judges=job.variant.gradients, other_log=log)
