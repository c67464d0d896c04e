"""Mark a function as a gate: a step of a check that may refuse it and signs its refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import ParamSpec

from pytest_precision.parity.verdict import Ruling

P = ParamSpec("P")


def gate(refuse: Callable[P, Ruling | None]) -> Callable[P, Ruling | None]:
    """Decorate a step of a check, called a gate, to put its name on the failure that it returns."""

    @wraps(refuse)
    def signed(*args: P.args, **kwargs: P.kwargs) -> Ruling | None:
        ruling = refuse(*args, **kwargs)
        return None if ruling is None else replace(ruling, gate=refuse.__name__)

    return signed
