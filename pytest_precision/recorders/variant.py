"""Variant: how one run of a side differs from the usual one, as plain data for the ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from pytest_precision.trace.moment import LogRequest


class Mode(Enum):
    """What is recorded of a run; `run_modes` names the functions that do so."""

    TRACE = "a trace"
    LOG = "a log of tensor operations"
    BESIDE_EXACT = "its first train step beside the same step in fp64"


@dataclass(frozen=True)
class Variant:
    """How one run of a side differs from the usual one, which is `USUAL`.

    Attributes:
        delays: number of the delays of its ranks, see `probes.races.perturb.delays`; 0 for none.
        ends_only: whether only what a train step leaves is looked at. Any look in between waits for
            the device, and so may heal the race that is looked for.
        noise: number of the run that rounds at random, see `probes.races.perturb.rounding_noise`; 0
            for none.
        start: number of another start, which has other weights and, of a workload of this package,
            other data; 0 for the one that all runs have.
        logged: which tensor operations are logged, in place of a trace; None for a trace.
        beside_exact: whether the first train step is recorded beside the same step in fp64, in
            place of a trace.
        gradients: whether losses and gradients of a whole run are computed once more, by the
            workload itself.
        updates: whether weight updates of a whole run are measured and judged.
        bare: whether nothing is recorded by which the run is judged alone.
    """

    delays: int = 0
    ends_only: bool = False
    noise: int = 0
    start: int = 0
    logged: LogRequest | None = None
    beside_exact: bool = False
    gradients: bool = True
    updates: bool = True
    bare: bool = False

    def over(self, base: Variant) -> Variant:
        """Return a variant that differs from the usual run in all that this one or `base` does.

        Where both differ, this one counts.
        """
        usual = vars(USUAL)
        return replace(
            base,
            **{name: setting for name, setting in vars(self).items() if setting != usual[name]},
        )

    @property
    def mode(self) -> Mode:
        """Return what is recorded of the run."""
        if self.logged is not None:
            return Mode.LOG
        return Mode.BESIDE_EXACT if self.beside_exact else Mode.TRACE

    @property
    def is_perturbed(self) -> bool:
        """Return whether something is done to the run, so that nothing of it is explained."""
        return bool(self.delays or self.noise or self.start or self.ends_only)


USUAL = Variant()
"""The run of an ordinary check."""
