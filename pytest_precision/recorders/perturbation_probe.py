"""Do to an engine's run on purpose what its job asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pytest_precision.engine.engine import STEP_PHASES
from pytest_precision.recorders.engine_run import EngineRun
from pytest_precision.recorders.probe import Probe


class PerturbationProbe(Probe[EngineRun]):
    """Plants a defect into each engine, and delays or rounds the phases of each train step."""

    @contextmanager
    def around(self, run: EngineRun, call: str) -> Iterator[None]:
        """Perturb a call as the job says."""
        perturbation = run.job.perturbation
        if call in STEP_PHASES:
            perturbation.wait()
            with perturbation.rounding(run.engine, call, run.step):
                yield
            return
        yield
        if call == "build":
            perturbation.plant(run.engine)
