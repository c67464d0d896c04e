"""Base classes of comparison criteria, each of which bounds how far two tensors may differ."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_precision.errors import expect_type, expected_but_got, is_bad_input, named

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pytest_precision.parity.compare.statistics import Statistics

    Magnitudes = npt.NDArray[np.floating[Any]]

__tracebackhide__ = is_bad_input


@dataclass(frozen=True)
class Criterion:
    """Base class of criteria, which bound how far a candidate's tensor may be from the reference's.
    Each function of `calls.CALLS` makes one.

    All that the package asks about a criterion is a member of this class or, where tensors are
    compared, of `Elementwise`, so that a new one is a subclass that overrides some of them.
    """

    @property
    def further_runs(self) -> int:
        """Return how many extra runs of the reference are needed to measure the bound."""
        return 0

    @property
    def left_out(self) -> str:
        """Return why tensors with this criterion are not compared; empty if they are compared."""
        return ""

    @property
    def call(self) -> str:
        """Return the Python call that makes the criterion in a test, such as `ulp(1)`."""
        raise NotImplementedError

    @property
    def exact(self) -> bool:
        """Return whether all tensors must have the same bytes and the same dtype."""
        return False

    @property
    def share(self) -> float:
        """Return how far a tensor may be off, as a share of its norm; 0 where no share says it."""
        return 0.0

    @property
    def tolerates(self) -> bool:
        """Return whether the criterion tolerates any difference in value."""
        return not self.left_out

    def measured(self, error: Callable[[float], float]) -> Criterion:
        """Return a copy with the measured bound, or `self` if the bound needs no measurement.

        Args:
            error: from the times that the largest error of the runs is allowed, to a relative L2
                error.
        """
        return self


class Measure(Enum):
    """The unit in which an element's error is measured: bytes, ulp or difference in value.

    Attributes:
        BYTES: equal or not; a single byte that differs is beyond any bound. Elements of dtypes that
            lack the criterion's own measure are compared like this.
        STEPS: representable values between the two. On their line -0 and +0 are one point and
            infinity is the neighbour of the largest finite value. Only floating dtypes have it.
        VALUE: `|candidate - reference|`. All dtypes but bool have it.
    """

    BYTES = auto()
    STEPS = auto()
    VALUE = auto()


@dataclass(frozen=True)
class Elementwise(Criterion):
    """A criterion with a bound for each element, which a subclass defines.

    In steps and in value, a NaN agrees with any NaN and with nothing else; in value, an infinity is
    within no bound of anything but the same infinity.

    Attributes:
        check_dtype: whether the storage dtypes must be the same too. If not, floating values are
            compared after the exact upcast to the wider of float32 and the two dtypes; other dtypes
            must always be the same.
    """

    measure: ClassVar[Measure] = Measure.BYTES
    """The unit of the bound."""

    check_dtype: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        expect_type(
            "check_dtype",
            self.check_dtype,
            bool,
            "True or False",
            "False lets the two sides be stored in different floating dtypes",
        )

    def __str__(self) -> str:
        return self.words + ("" if self.check_dtype else ", whatever the storage dtypes")

    @property
    def words(self) -> str:
        """Return the bound in words, for a report."""
        raise NotImplementedError

    def bound(self, reference: Magnitudes) -> Magnitudes | int:
        """Return the largest allowed difference: an array with one per element, or one for all.

        In bytes it is 0: none may differ, unless the tensor as a whole `allows` it.

        Args:
            reference: magnitudes of the reference, in fp32 or wider; not to be written to.
        """
        return 0

    def allowance(self, norm: float) -> float | None:
        """Return the largest allowed L2 error of a tensor whose L2 norm is `norm`.

        None where each element has a bound of its own.
        """
        return None

    def allows(self, statistics: Statistics) -> bool:
        """Return whether a tensor passes as a whole although elements exceed their bound.

        Args:
            statistics: of the two tensors.
        """
        return False


def within(statistics: Statistics, rel: float) -> bool:
    """Return whether a relative L2 error is at most `rel`, and NaN, infinities and bools match."""
    if statistics.nan_mismatched or statistics.inf_mismatched:
        return False
    return statistics.rel_l2 <= rel and not isinstance(statistics.candidate_first, bool)


def finite_from_0(name: str, value: object) -> float:
    """Return a number as a float, or raise if it is negative or not finite.

    Raises:
        TypeError, ValueError: it is no finite number from 0.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(
            expected_but_got("a finite number from 0", named(name, value), "pass a Python float")
        )
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(
            expected_but_got(
                "a finite number from 0",
                named(name, value),
                "to leave tensors out of the comparison, use unchecked(reason=)",
            )
        )
    return float(value)
