"""The comparison criteria, as `Bitwise` and `Ulp`: each bounds how far two tensors may differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_precision.errors import expect_count, expect_type, expected_but_got, is_bad_input, named
from pytest_precision.parity.compare.criterion import (
    Criterion,
    Elementwise,
    Measure,
    finite_from_0,
    within,
)

if TYPE_CHECKING:
    from pytest_precision.parity.compare.criterion import Magnitudes
    from pytest_precision.parity.compare.statistics import Statistics

__tracebackhide__ = is_bad_input

FEWEST_RUNS = 5
"""Runs of a reference below which their spread says little: it has heavy tails."""


@dataclass(frozen=True)
class Bitwise(Elementwise):
    """Requires equal bytes in both tensors: -0 is not +0, and the payload of a NaN counts."""

    tolerates = False
    words = "bitwise"
    call = "bitwise()"

    @property
    def exact(self) -> bool:
        """Return whether the criterion demands equal dtypes, and not only equal bytes."""
        return self.check_dtype


@dataclass(frozen=True)
class Ulp(Elementwise):
    """Allows floating values that are at most `n` representable values apart.

    Attributes:
        n: the largest distance that is allowed.

    Raises:
        TypeError, ValueError: for a distance that is no int from 0.
    """

    n: int

    measure = Measure.STEPS

    @property
    def share(self) -> float:
        """Return how far a tensor may be off, as a share of its norm."""
        return self.n * 2.0**-23

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.n) is not int:
            raise TypeError(
                expected_but_got(
                    "an int from 0",
                    named("n", self.n),
                    "a share of the value itself is close(rtol=...)",
                )
            )
        if self.n < 0:
            raise ValueError(
                expected_but_got(
                    "an int from 0",
                    f"n={self.n} (int)",
                    "ulp(1) allows the neighbouring value, bitwise() allows nothing",
                )
            )

    @property
    def words(self) -> str:
        """Return the bound in words, such as `within 2 ulp`."""
        return f"within {self.n} ulp"

    @property
    def call(self) -> str:
        """Return the Python call that makes this criterion, such as `ulp(2)`."""
        return f"ulp({self.n})"

    def bound(self, reference: Magnitudes) -> int:
        """Return `n`, the largest allowed distance in representable values."""
        return self.n


@dataclass(frozen=True)
class Close(Elementwise):
    """Allows `|candidate - reference| <= atol + rtol * |reference|` in each element.

    Differences of integers are exact, others and the bound are rounded to float64.

    Attributes:
        rtol: share of the reference that is allowed.
        atol: absolute difference that is allowed, in the unit of the tensors.

    Raises:
        TypeError, ValueError: for a tolerance that is no finite number from 0.
    """

    rtol: float
    atol: float

    measure = Measure.VALUE

    @property
    def share(self) -> float:
        """Return how far a tensor may be off, as a share of its norm."""
        return self.rtol

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rtol", "atol"):
            value = finite_from_0(name, getattr(self, name))
            object.__setattr__(self, name, value)

    @property
    def words(self) -> str:
        """Return the bound as a formula with its numbers, `|difference| <= atol + ...`."""
        return (
            f"|difference| <= atol + rtol*|reference|, rtol={self.rtol!r}, atol={self.atol!r}, "
            "the caller's own"
        )

    @property
    def call(self) -> str:
        """Return the Python call that makes this criterion, such as `close(rtol=1e-05, atol=0)`."""
        return f"close(rtol={self.rtol:g}, atol={self.atol:g})"

    def bound(self, reference: Magnitudes) -> Magnitudes:
        """Return the allowed difference of each element, `atol + rtol * |reference|`."""
        bound: Magnitudes = reference * self.rtol
        bound += self.atol
        return bound


@dataclass(frozen=True)
class Norm(Elementwise):
    """Allows `||candidate - reference|| <= rel * ||reference||` for each tensor, in fp64.

    No element has a bound of its own: some may be far off where the others are near. NaN and
    infinities must be in the same places, and bools must be the same.

    Attributes:
        rel: the largest relative L2 error that is allowed.

    Raises:
        TypeError, ValueError: for an error that is no number from 0 to below 1, which a tensor of
            zeros would have.
    """

    rel: float

    @property
    def share(self) -> float:
        """Return how far a tensor may be off, as a share of its norm."""
        return self.rel

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rel", finite_from_0("rel", self.rel))
        if self.rel >= 1:
            raise ValueError(
                expected_but_got("a number below 1", named("rel", self.rel), "1 % is rel=0.01")
            )

    @property
    def words(self) -> str:
        """Return the bound as a formula with its number, `||difference|| <= rel*||reference||`."""
        return f"||difference|| <= rel*||reference||, rel={self.rel!r}, the caller's own"

    @property
    def call(self) -> str:
        """Return the Python call that makes this criterion, such as `norm(rel=0.001)`."""
        return f"norm(rel={self.rel:g})"

    def allowance(self, norm: float) -> float:
        """Return the largest allowed L2 norm of the difference: `rel` times the given `norm`."""
        return self.rel * norm

    def allows(self, statistics: Statistics) -> bool:
        """Return whether the relative L2 error is at most `rel`, and NaN and infinities match."""
        return within(statistics, self.rel)


@dataclass(frozen=True)
class Noise(Elementwise):
    """Allows `safety` times the relative L2 error that random rounding causes in the reference.

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

    @property
    def share(self) -> float:
        """Return how far a tensor may be off, as a share of its norm."""
        return self.rel or 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        advice = "fewer runs do not show how far noise goes"
        expect_count("runs", self.runs, FEWEST_RUNS, advice)
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
        """Return the bound as a formula, without a number until rounding has been measured."""
        far = "measured" if self.rel is None else f"{self.rel:.2g}"
        return (
            f"||difference|| <= {far}*||reference||, {self.safety:g} times the noise of "
            f"{self.runs} runs"
        )

    @property
    def call(self) -> str:
        """Return the Python call that makes this criterion, such as `noise(runs=5, safety=6)`."""
        return f"noise(runs={self.runs}, safety={self.safety:g})"

    @property
    def further_runs(self) -> int:
        """Return how many extra runs of the reference, rounded at random, measure the bound."""
        return self.runs

    def measured(self, error: Callable[[float], float]) -> Noise:
        """Return a copy of the criterion whose bound is the measured rounding error."""
        return replace(self, rel=error(self.safety))

    def allows(self, statistics: Statistics) -> bool:
        """Return whether `rel_l2` is within a measured `rel`, and NaN and infinities match."""
        return self.rel is not None and within(statistics, self.rel)


@dataclass(frozen=True)
class Unchecked(Criterion):
    """Leaves tensors out of the comparison, for a reason that the report repeats.

    Attributes:
        reason: why not, for the reader of the report.

    Raises:
        TypeError, ValueError: for a reason that says nothing.
    """

    reason: str

    def __post_init__(self) -> None:
        expect_type("reason", self.reason, str, "a sentence", "say why the tensors may differ")
        if not self.reason.strip():
            raise ValueError(
                expected_but_got(
                    "a sentence", named("reason", self.reason), "say why the tensors may differ"
                )
            )

    @property
    def left_out(self) -> str:
        """Return the reason why tensors are left out of the comparison."""
        return self.reason

    @property
    def call(self) -> str:
        """Return the Python call that makes this criterion, such as `unchecked(reason='...')`."""
        return f"unchecked(reason={self.reason!r})"

    def __str__(self) -> str:
        return f"not compared: {self.reason}"
