"""What a function says of the ranks that it needs, in attributes that decorators write on it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from pytest_precision.matrix.variables import Variables, plain


@dataclass(frozen=True, slots=True)
class Declared:
    """What a function declares; see the decorators in `layouts.declarations`.

    Attributes:
        environment: variables that must be set before torch starts.
        fresh_ranks: whether no other job may run on its ranks, not even the same one again.
        may_leave: patterns of what it may leave changed.
    """

    environment: Variables = ()
    fresh_ranks: bool = False
    may_leave: tuple[str, ...] = ()

    @classmethod
    def of(cls, *functions: object) -> Declared:
        """What callables declare together; a partial adds to its function. The first one wins."""
        environment: dict[str, str] = {}
        for variables in _attributes(functions, "environment"):
            if isinstance(variables, Mapping):  # an attribute of that name may be anything
                environment = {**variables, **environment}
        patterns = [a for a in _attributes(functions, "may_leave") if isinstance(a, tuple)]
        return cls(
            plain(environment),
            any(found is True for found in _attributes(functions, "fresh_ranks")),
            tuple(chain.from_iterable(patterns)),
        )

    def allowing(self, patterns: tuple[str, ...]) -> Declared:
        """The same with more patterns of what may be left."""
        return replace(self, may_leave=(*self.may_leave, *patterns))


def _attributes(functions: Iterable[object], name: str) -> Iterator[Any]:
    """The values of an attribute: of a partial, then of its function."""
    for function in functions:
        yield getattr(function, name, None)
        if isinstance(function, functools.partial):
            yield from _attributes([function.func], name)
