"""Criterion: how equal two tensors must be, and why that much."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_precision.errors import expect_type, expected_but_got, is_bad_input, named

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pytest_precision.parity.statistics import Statistics

    Magnitudes = npt.NDArray[np.floating[Any]]

__tracebackhide__ = is_bad_input


@dataclass(frozen=True)
class Criterion:
    """How equal two tensors must be: `bitwise`, `ulp`, `close` or `unchecked`, which make one."""


class Measure(Enum):
    """The unit in which the distance of an element from its reference is counted.

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
    """Every element has a bound of its own, which a subclass defines.

    In steps and in value, a NaN agrees with any NaN and with nothing else; in value, an infinity is
    within no bound of anything but the same infinity.

    Attributes:
        check_dtype: whether the storage dtypes must be the same too. If not, floating values are
            compared after the exact upcast to the wider of float32 and the two dtypes; other dtypes
            must always be the same.
    """

    measure: ClassVar[Measure]
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

    @property
    def call(self) -> str:
        """Return the call that makes the criterion in a test."""
        raise NotImplementedError

    def bound(self, reference: Magnitudes) -> Magnitudes | int:
        """Return the bound of each element in value; one number for all in bytes or steps.

        Args:
            reference: magnitudes of the reference, in fp32 or wider; not to be written to.
        """
        raise NotImplementedError

    def allows(self, statistics: Statistics) -> bool:
        """Return whether a tensor may be as it is although elements of it are beyond their bound.

        Args:
            statistics: of the two tensors.
        """
        return False


@dataclass(frozen=True)
class Bitwise(Elementwise):
    """Every byte is the same, so -0 is not +0 and a NaN's payload counts."""

    measure = Measure.BYTES

    @property
    def words(self) -> str:
        """Return `bitwise`."""
        return "bitwise"

    @property
    def call(self) -> str:
        """Return `bitwise()`."""
        return "bitwise()"

    def bound(self, reference: Magnitudes) -> int:
        """Return 0: no byte may differ."""
        return 0


@dataclass(frozen=True)
class Ulp(Elementwise):
    """Floating values are at most `n` representable values apart, in the dtype of the comparison.

    Attributes:
        n: the largest distance that is allowed.

    Raises:
        TypeError, ValueError: for a distance that is no int from 0.
    """

    n: int

    measure = Measure.STEPS

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
        """Return the bound as `within 2 ulp`."""
        return f"within {self.n} ulp"

    @property
    def call(self) -> str:
        """Return the call as `ulp(2)`."""
        return f"ulp({self.n})"

    def bound(self, reference: Magnitudes) -> int:
        """Return `n`, in steps."""
        return self.n


@dataclass(frozen=True)
class Close(Elementwise):
    """`|candidate - reference| <= atol + rtol * |reference|`, a bound of the caller's own.

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

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rtol", "atol"):
            value = finite_from_0(name, getattr(self, name))
            object.__setattr__(self, name, value)

    @property
    def words(self) -> str:
        """Return the formula of the bound, with its numbers."""
        return (
            f"|difference| <= atol + rtol*|reference|, rtol={self.rtol!r}, atol={self.atol!r}, "
            "the caller's own"
        )

    @property
    def call(self) -> str:
        """Return the call as `close(rtol=1e-05, atol=1e-08)`."""
        return f"close(rtol={self.rtol:g}, atol={self.atol:g})"

    def bound(self, reference: Magnitudes) -> Magnitudes:
        """Return `atol + rtol * reference` of each element."""
        bound: Magnitudes = reference * self.rtol
        bound += self.atol
        return bound


@dataclass(frozen=True)
class Norm(Elementwise):
    """`||candidate - reference|| <= rel * ||reference||` of each logical tensor, in fp64.

    No element has a bound of its own: some may be far off where the others are near. NaN and
    infinities must be in the same places, and bools must be the same.

    Attributes:
        rel: the largest relative L2 error that is allowed.

    Raises:
        TypeError, ValueError: for an error that is no number from 0 to below 1, which a tensor of
            zeros would have.
    """

    rel: float

    measure = Measure.BYTES

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rel", finite_from_0("rel", self.rel))
        if self.rel >= 1:
            raise ValueError(
                expected_but_got("a number below 1", named("rel", self.rel), "1 % is rel=0.01")
            )

    @property
    def words(self) -> str:
        """Return the formula of the bound, with its number."""
        return f"||difference|| <= rel*||reference||, rel={self.rel!r}, the caller's own"

    @property
    def call(self) -> str:
        """Return the call as `norm(rel=0.001)`."""
        return f"norm(rel={self.rel:g})"

    def bound(self, reference: Magnitudes) -> int:
        """Return 0: the bound is that of the whole tensor."""
        return 0

    def allows(self, statistics: Statistics) -> bool:
        """Return whether the relative L2 error is within the bound, and all else the same."""
        return within(statistics, self.rel)


@dataclass(frozen=True)
class Unchecked(Criterion):
    """The tensors are not compared.

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

    def __str__(self) -> str:
        return f"not compared: {self.reason}"


def bitwise(*, check_dtype: bool = True) -> Bitwise:
    """Ask for the same bytes.

    With `check_dtype=False` the two may be stored in different floating dtypes, and the bytes are
    those of both after the exact upcast to float32, or float64 where one of them is.
    """
    return Bitwise(check_dtype=check_dtype)


def ulp(n: int, *, check_dtype: bool = True) -> Ulp:
    """Allow `n` steps on the line of representable values; `check_dtype` as of `bitwise`."""
    return Ulp(n, check_dtype=check_dtype)


def close(*, rtol: float, atol: float, check_dtype: bool = True) -> Close:
    """Allow `|candidate - reference| <= atol + rtol * |reference|`; `check_dtype` as of `bitwise`.

    Integers are compared exactly, and bools must be the same.
    """
    return Close(rtol, atol, check_dtype=check_dtype)


def norm(*, rel: float, check_dtype: bool = True) -> Norm:
    """Allow a relative L2 error of each tensor; `check_dtype` as of `bitwise`.

    This is the criterion for another order of summation: some elements, which nearly cancel, are
    then far off in relative terms, and no bound of elements fits both them and the others.
    """
    return Norm(rel, check_dtype=check_dtype)


def unchecked(*, reason: str) -> Unchecked:
    """Leave tensors out of the comparison, for a `reason` that every report repeats."""
    return Unchecked(reason)


def within(statistics: Statistics, rel: float) -> bool:
    """Return whether a relative L2 error is within a bound, and all else is the same."""
    if statistics.nan_mismatched or statistics.inf_mismatched:
        return False
    return statistics.rel_l2 <= rel and not isinstance(statistics.candidate_first, bool)


def finite_from_0(name: str, value: object) -> float:
    """Return a number of the caller's own.

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
                "what should not be compared is unchecked(reason=)",
            )
        )
    return float(value)


def no_criterion(name: str, given: object) -> TypeError:
    """Return an error which says that `given` is no criterion, and how to make one."""
    return TypeError(
        expected_but_got(
            "a criterion",
            named(name, given),
            "make one with bitwise(), ulp(n), close(rtol=..., atol=...), norm(rel=...), noise() or "
            "unchecked(reason=...)",
        )
    )
