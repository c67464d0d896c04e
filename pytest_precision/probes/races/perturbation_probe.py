"""Do to an engine's run on purpose what the variant of its job says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from pytest_precision.engine.engine import STEP_PHASES
from pytest_precision.recorders.engine_run import EngineRun
from pytest_precision.recorders.probe import Probe


class PerturbationProbe(Probe[EngineRun]):
    """Delays or rounds the phases of each train step."""

    @contextmanager
    def around(self, run: EngineRun, call: str) -> Iterator[None]:
        """Delay this rank before a phase if it is late, and round in it in a run with noise."""
        if call not in STEP_PHASES:
            yield
            return
        if run.job.pause is not None:
            run.job.pause()
        with _rounding(run, call):
            yield


def _rounding(run: EngineRun, phase: str) -> AbstractContextManager[object]:
    """Return a context that rounds operations inside at random; a null context without noise."""
    noise = run.job.variant.noise
    if not noise:
        return nullcontext()
    # Only here, since few runs have noise.
    from pytest_precision.probes.races.perturb.rounding_noise import rounding_noise

    return rounding_noise(noise, run.engine, phase, run.step)
