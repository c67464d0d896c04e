"""Declarations of the ranks that a function needs, in attributes that decorators set on it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from pytest_precision.matrix.variables import Variables, plain_variables


@dataclass(frozen=True, slots=True)
class Declared:
    """What a layout or function needs of the processes that run it, such as environment variables.

    Attributes:
        environment: variables that must be set before torch starts.
        fresh_ranks: whether no other job may run on its ranks, not even the same one again.
        may_leave: patterns of the process-wide state that it may leave changed.
        transformer_engine: whether it uses Transformer Engine.
        warn_only: whether operators without a deterministic algorithm run, with a warning; a test
            says so, and no function.
        pure: whether all that runs depends on its arguments and its cell alone; whoever knows which
            parts are this package's own says so.
    """

    environment: Variables = ()
    fresh_ranks: bool = False
    may_leave: tuple[str, ...] = ()
    transformer_engine: bool = False
    warn_only: bool = False
    pure: bool = False

    @classmethod
    def of(cls, *functions: object) -> Declared:
        """Combine the needs that decorators declare on functions, also on functions in `partial`s.

        If two of them set a variable, the value of the first one holds.
        """
        environment: dict[str, str] = {}
        for variables in _attributes(functions, "environment"):
            if isinstance(variables, Mapping):  # an attribute of that name may be anything
                environment = {**variables, **environment}
        patterns = [a for a in _attributes(functions, "may_leave") if isinstance(a, tuple)]
        return cls(
            plain_variables(environment),
            any(declaration is True for declaration in _attributes(functions, "fresh_ranks")),
            tuple(chain.from_iterable(patterns)),
            any(
                declaration is True for declaration in _attributes(functions, "transformer_engine")
            ),
        )

    def allowing(self, patterns: tuple[str, ...]) -> Declared:
        """Return a copy with more process-wide state that the function may leave changed."""
        return replace(self, may_leave=(*self.may_leave, *patterns))


def declares_pure(function: object) -> bool:
    """Return whether a function, or the one in a `partial`, declares that it is pure.

    A subclass of one that does, or a function that wraps it, promises nothing by itself.
    """
    if getattr(function, "declared_pure", False) is function:
        return True
    return isinstance(function, functools.partial) and declares_pure(function.func)


def _attributes(functions: Iterable[object], name: str) -> Iterator[Any]:
    """Yield the value of a named attribute of each function, and of functions in `partial`s."""
    for function in functions:
        yield getattr(function, name, None)
        if isinstance(function, functools.partial):
            yield from _attributes([function.func], name)
