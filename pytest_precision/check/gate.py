"""Mark a function as a gate: a step of a check that may refuse it and signs its refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec

from pytest_precision.parity.verdict import Ruling

if TYPE_CHECKING:
    from pytest_precision.check.case import Case

P = ParamSpec("P")

Gate = Callable[["Case"], "Ruling | None"]
"""A gate of a cell, which is asked of both recordings and the terms of their test."""


def gate(refuse: Callable[P, Ruling | None]) -> Callable[P, Ruling | None]:
    """Decorate a step of a check, called a gate, to put its name on the failure that it returns."""

    @wraps(refuse)
    def signed(*args: P.args, **kwargs: P.kwargs) -> Ruling | None:
        ruling = refuse(*args, **kwargs)
        return None if ruling is None else replace(ruling, gate=refuse.__name__)

    return signed


def failed(reason: str, details: Iterable[str] = ()) -> Ruling:
    """Return the ruling that a cell fails."""
    return Ruling(outcome="fail", reason=reason, details=tuple(details))


def unproven(reason: str | None, details: Iterable[str] = ()) -> Ruling | None:
    """Return the ruling that a cell proves nothing; None without a reason."""
    return Ruling(outcome="vacuous", reason=reason, details=tuple(details)) if reason else None
