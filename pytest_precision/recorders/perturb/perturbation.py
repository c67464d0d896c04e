"""Perturbation: the deliberate changes to one run, such as delays or a planted defect."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from pytest_precision.engine.engine import Engine


class Perturbation(NamedTuple):
    """The deliberate changes to one run, such as delays or a planted defect; none by default.

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
        """Delay this rank if the run has delays and this is the late one."""
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
        """Return the context for a phase of a step; in a run with noise it rounds at random.

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
