"""Noise as a criterion: the bound is measured, by rounding runs of the reference at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_precision.errors import expected_but_got, named
from pytest_precision.parity.compare.criterion import Elementwise, Measure, finite_from_0, within

if TYPE_CHECKING:
    from pytest_precision.parity.compare.criterion import Magnitudes
    from pytest_precision.parity.compare.statistics import Statistics

FEWEST_RUNS = 5
"""Runs of a reference below which their spread says little: it has heavy tails."""


@dataclass(frozen=True)
class Noise(Elementwise):
    """A relative L2 error that roundings explain, measured for each tensor and step.

    The reference is recorded `runs` more times, each time with the results of its operations
    rounded at random. `rel` is None until then, and nothing but the same bytes is within it.

    Attributes:
        runs: number of these runs.
        safety: times that the largest error of the runs is allowed.
        rel: the largest error that is allowed of one tensor at one step.

    Raises:
        TypeError, ValueError: for a number of runs that is no int from 5, and for a safety that is
            no finite number from 1.
    """

    runs: int = 5
    safety: float = 6.0
    rel: float | None = None

    measure = Measure.BYTES

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.runs) is not int or self.runs < FEWEST_RUNS:
            error = ValueError if type(self.runs) is int else TypeError
            raise error(
                expected_but_got(
                    f"an int from {FEWEST_RUNS}",
                    named("runs", self.runs),
                    "fewer runs do not show how far noise goes",
                )
            )
        object.__setattr__(self, "safety", finite_from_0("safety", self.safety))
        if self.safety < 1:
            raise ValueError(
                expected_but_got(
                    "a number from 1",
                    named("safety", self.safety),
                    "below 1, noise itself would fail",
                )
            )

    @property
    def words(self) -> str:
        """Return the bound in words, as far as it is known."""
        far = "measured" if self.rel is None else f"{self.rel:.2g}"
        return (
            f"||difference|| <= {far}*||reference||, {self.safety:g} times the noise of "
            f"{self.runs} runs"
        )

    @property
    def call(self) -> str:
        """Return the call as `noise(runs=5, safety=6)`."""
        return f"noise(runs={self.runs}, safety={self.safety:g})"

    @property
    def further_runs(self) -> int:
        """Return the number of runs that round at random."""
        return self.runs

    def measured(self, error: Callable[[float], float]) -> Noise:
        """Return the criterion with the error that roundings explain."""
        return replace(self, rel=error(self.safety))

    def bound(self, reference: Magnitudes) -> int:
        """Return 0: the bound is that of the whole tensor."""
        return 0

    def allows(self, statistics: Statistics) -> bool:
        """Return whether noise explains the relative L2 error, and all else is the same."""
        return self.rel is not None and within(statistics, self.rel)
