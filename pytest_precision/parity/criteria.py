"""Criteria: which tensors are held to which criterion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_precision.parity.criterion import Bitwise, Criterion, Unchecked, no_criterion

DEFAULT = "default"
"""The key of a mapping of criteria that stands for every kind that has none of its own."""


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
            raise no_criterion("criterion", given)
        for kind, criterion in given.items():
            if not isinstance(kind, str):
                raise TypeError(
                    f"expected the name of a kind but got {kind!r} ({type(kind).__name__}) as a "
                    "key of criterion; write {'grad': ulp(1)}"
                )
            if not isinstance(criterion, Criterion):
                raise no_criterion(f"criterion[{kind!r}]", criterion)
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
