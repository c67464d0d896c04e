"""Perturbation: delays, random roundings, a planted defect or another start for one run."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pytest_precision.recorders.perturb.delays import never
from pytest_precision.workloads.base import Workload
from pytest_precision.workloads.recipe import TrainingRecipe


class Perturbation(NamedTuple):
    """What is done to one run; nothing unless given.

    Attributes:
        pause: called before each phase of a train step.
        mutant: name of the mutant that is planted into each engine; empty for none.
        noise: number of the run whose operations are rounded at random; 0 for none.
        ends_only: whether only what a train step leaves is looked at. Any look in between waits for
            the device, and so may heal the race that is looked for.
        start: number of another start, which has other weights and, of a workload of this package,
            other data; 0 for the one that all runs have.
    """

    pause: Callable[[], None] = never
    mutant: str = ""
    noise: int = 0
    ends_only: bool = False
    start: int = 0


NONE = Perturbation()


def with_other_data(workload: Workload, start: int) -> Workload:
    """Return a workload with another seed of its data; a user's workload keeps its data."""
    if isinstance(workload, TrainingRecipe):
        workload.seed += start
    return workload
