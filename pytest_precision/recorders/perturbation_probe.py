"""Do to an engine's run on purpose what its job asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pytest_precision.engine.engine import STEP_PHASES
from pytest_precision.recorders.engine_run import EngineRun
from pytest_precision.recorders.probe import Probe


class PerturbationProbe(Probe[EngineRun]):
    """Delays or rounds the phases of each train step."""

    @contextmanager
    def around(self, run: EngineRun, call: str) -> Iterator[None]:
        """Perturb a phase as the job says."""
        if call not in STEP_PHASES:
            yield
            return
        run.job.perturbation.wait()
        with run.job.perturbation.rounding(run.engine, call, run.step):
            yield
