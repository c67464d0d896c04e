"""Gate: a function that may refuse a check, and signs the ruling with its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import ParamSpec

from pytest_precision.parity.verdict import Ruling

P = ParamSpec("P")


def gate(refuse: Callable[P, Ruling | None]) -> Callable[P, Ruling | None]:
    """Turn a function into a gate, whose rulings carry the function's name."""

    @wraps(refuse)
    def signed(*args: P.args, **kwargs: P.kwargs) -> Ruling | None:
        ruling = refuse(*args, **kwargs)
        return None if ruling is None else replace(ruling, gate=refuse.__name__)

    return signed
