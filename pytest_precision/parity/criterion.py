"""Criterion: how equal two tensors must be, and why that much."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

DEFAULT = "default"
"""The key of a mapping of criteria that stands for every kind that has none of its own."""


@dataclass(frozen=True)
class Criterion:
    """How equal two tensors must be: `bitwise`, `ulp`, `close` or `unchecked`, which make one."""


@dataclass(frozen=True)
class Tolerance(Criterion):
    """Values may differ, up to a bound that follows from the size of the reference: `ulp`, `close`.

    Attributes:
        storage: as of `Bitwise`.
    """

    storage: bool = field(default=True, kw_only=True)

    @property
    def call(self) -> str:
        """Return how it is written in a test."""
        raise NotImplementedError

    def bound(self, size: Tensor, dtype: torch.dtype) -> Tensor:
        """Return how far an element may be off.

        Args:
            size: magnitudes of the reference, in fp64.
            dtype: that both sides are compared in.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Bitwise(Criterion):
    """Every byte is the same, so -0 is not +0 and a NaN's payload counts.

    Attributes:
        storage: whether the storage dtypes must be the same too. Where they need not be, floating
            values are compared byte for byte after the exact upcast to the wider of float32 and
            the two dtypes; other dtypes must always be the same.
    """

    storage: bool = True

    def __post_init__(self) -> None:
        _expect_storage(self.storage)

    def __str__(self) -> str:
        return "bitwise" + _in_words(self.storage)


@dataclass(frozen=True)
class Ulp(Tolerance):
    """Floating values are at most `n` representable values apart.

    On the line of representable values -0 and +0 are one point and infinity is the neighbour of
    the largest finite value. A NaN agrees with any NaN and with nothing else. Dtypes without
    such a line (integers, bool, complex) must be the same byte for byte.

    Attributes:
        n: the largest distance that is allowed.
        storage: as of `Bitwise`; the distance counts in the dtype that both were upcast to.

    Raises:
        TypeError, ValueError: for a distance that is no int from 0.
    """

    n: int

    def __post_init__(self) -> None:
        if type(self.n) is not int:
            raise TypeError(
                f"expected an int from 0 but got n={self.n!r} ({type(self.n).__name__}); "
                "a share of the value itself is close(rtol=...)"
            )
        if self.n < 0:
            raise ValueError(
                f"expected an int from 0 but got n={self.n} (int); "
                "ulp(1) allows the neighbouring value, bitwise() allows nothing"
            )
        _expect_storage(self.storage)

    def __str__(self) -> str:
        return f"within {self.n} ulp" + _in_words(self.storage)

    @property
    def call(self) -> str:
        return f"ulp({self.n})"

    def bound(self, size: Tensor, dtype: torch.dtype) -> Tensor:
        """Return `n` times the distance to the next larger value, as if that did not grow."""
        import torch

        limits = torch.finfo(dtype)
        size = size.clamp(min=limits.tiny)
        significand, _ = size.frexp()
        return self.n * limits.eps * size / (2 * significand)


@dataclass(frozen=True)
class Close(Tolerance):
    """`|candidate - reference| <= atol + rtol * |reference|`, a bound of the caller's own.

    A NaN agrees with any NaN, an infinity with the same infinity, and neither with anything else.
    Differences of integers are exact, others and the bound are rounded to float64. Bools must be
    the same byte for byte.

    Attributes:
        rtol: share of the reference that is allowed.
        atol: absolute difference that is allowed, in the unit of the tensors.
        storage: as of `Bitwise`.

    Raises:
        TypeError, ValueError: for a tolerance that is no finite number from 0.
    """

    rtol: float
    atol: float

    def __post_init__(self) -> None:
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(
                    f"expected a finite number from 0 but got {name}={value!r} "
                    f"({type(value).__name__}); pass a Python float"
                )
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(
                    f"expected a finite number from 0 but got {name}={value!r} "
                    f"({type(value).__name__}); what should not be compared is unchecked(reason=)"
                )
            object.__setattr__(self, name, float(value))
        _expect_storage(self.storage)

    def __str__(self) -> str:
        return (
            f"|difference| <= atol + rtol*|reference|, rtol={self.rtol!r}, atol={self.atol!r}, "
            "the caller's own" + _in_words(self.storage)
        )

    @property
    def call(self) -> str:
        return f"close(rtol={self.rtol:g}, atol={self.atol:g})"

    def bound(self, size: Tensor, dtype: torch.dtype) -> Tensor:
        return self.atol + self.rtol * size


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
        if not isinstance(self.reason, str):
            raise TypeError(
                f"expected a sentence but got reason={self.reason!r} "
                f"({type(self.reason).__name__}); say why the tensors may differ"
            )
        if not self.reason.strip():
            raise ValueError(
                f"expected a sentence but got reason={self.reason!r} (str); "
                "say why the tensors may differ"
            )

    def __str__(self) -> str:
        return f"not compared: {self.reason}"


@dataclass(frozen=True)
class Criteria:
    """A criterion for every kind of observation.

    Attributes:
        default: for the kinds that have none of their own.
        by_kind: kind to criterion, of those that have.
    """

    default: Criterion = field(default_factory=Bitwise)
    by_kind: Mapping[str, Criterion] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Criteria | Criterion | Mapping[str, Criterion] | None) -> Criteria:
        """What a caller gave for `criterion=`: nothing means bitwise, one criterion is for all.

        Args:
            given: a mapping goes from kind to criterion, and its key `default` stands for every
                other kind. Kinds are free text, since optimizers name their own state.

        Raises:
            TypeError: for anything else, and for a mapping that holds anything but criteria.
        """
        if given is None:
            return cls()
        if isinstance(given, Criteria):
            return given
        if isinstance(given, Criterion):
            return cls(given)
        if not isinstance(given, Mapping):
            raise _no_criterion("criterion", given)
        for kind, criterion in given.items():
            if not isinstance(kind, str):
                raise TypeError(
                    f"expected the name of a kind but got {kind!r} ({type(kind).__name__}) as a "
                    "key of criterion; write {'grad': ulp(1)}"
                )
            if not isinstance(criterion, Criterion):
                raise _no_criterion(f"criterion[{kind!r}]", criterion)
        own = dict(given)
        return cls(own.pop(DEFAULT, Bitwise()), own)

    @property
    def bitwise(self) -> bool:
        """Whether digests of the bytes decide: nothing compared may differ in a single one."""
        given = (self.default, *self.by_kind.values())
        return all(isinstance(c, Unchecked) or c == Bitwise() for c in given)

    def for_kind(self, kind: str) -> Criterion:
        """The criterion of the observations of `kind`."""
        return self.by_kind.get(kind, self.default)

    def __str__(self) -> str:
        own = [f"{kind}: {criterion}" for kind, criterion in self.by_kind.items()]
        return "; ".join([str(self.default), *own])


def bitwise(*, storage: bool = True) -> Bitwise:
    """The same bytes; with `storage=False` in whatever floating dtypes the two are stored."""
    return Bitwise(storage)


def ulp(n: int, *, storage: bool = True) -> Ulp:
    """At most `n` representable values apart; `storage` as of `bitwise`."""
    return Ulp(n, storage=storage)


def close(*, rtol: float, atol: float, storage: bool = True) -> Close:
    """`|candidate - reference| <= atol + rtol * |reference|`; `storage` as of `bitwise`."""
    return Close(rtol, atol, storage=storage)


def unchecked(*, reason: str) -> Unchecked:
    """Not compared, for a `reason` that every report repeats."""
    return Unchecked(reason)


def _in_words(storage: bool) -> str:
    return "" if storage else ", whatever the storage dtypes"


def _expect_storage(storage: object) -> None:
    if not isinstance(storage, bool):
        raise TypeError(
            f"expected True or False but got storage={storage!r} ({type(storage).__name__}); "
            "False lets the two sides be stored in different floating dtypes"
        )


def _no_criterion(name: str, given: object) -> TypeError:
    return TypeError(
        f"expected a criterion but got {name}={given!r} ({type(given).__name__}); make one with "
        "bitwise(), ulp(n), close(rtol=..., atol=...) or unchecked(reason=...)"
    )
