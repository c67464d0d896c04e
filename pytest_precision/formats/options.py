"""The allowed values of the options of formats, the same for every format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from math import inf
from typing import Any

import torch

from pytest_precision.errors import expected_but_got, named
from pytest_precision.formats.elements import Element


def _is_device(value: Any) -> bool:
    try:
        torch.device(value)
    except (RuntimeError, TypeError):
        return False
    return True


_CHOICES = {
    "algorithm": ("max", "most_recent"),
    "error": ("MAE", "MSE"),
    "rounding": ("ceil", "floor"),
    "scale_maximum": (448, 256),
    "scaling": ("transformer_engine", "torchao"),
    "update": ("fused", "unfused"),
}

_RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "device": ("a device that torch knows", _is_device),
    "element": ("an Element", lambda value: isinstance(value, Element)),
    "epsilon": (
        "a finite number from 0",
        lambda value: isinstance(value, (int, float)) and 0 <= value < inf,
    ),
    "history_length": (
        "an integer from 1",
        lambda value: isinstance(value, int) and value >= 1,
    ),
    "if_infinite": (
        "None or a finite number above 0",
        lambda value: value is None or (isinstance(value, (int, float)) and 0 < value < inf),
    ),
    "margin": ("an integer", lambda value: isinstance(value, int)),
    "reduce_amax": ("None or a callable", lambda value: value is None or callable(value)),
    **{
        option: (f"one of {', '.join(map(str, known))}", known.__contains__)
        for option, known in _CHOICES.items()
    },
}


def check_options(options: Mapping[str, object]) -> None:
    """Raise ValueError for the first option of a number format whose value is not allowed.

    Raises:
        ValueError: an option has such a value; the message names the first one.
    """
    for option, value in options.items():
        expected, holds = _RULES.get(option, ("", None))
        if holds is not None and not holds(value):
            raise ValueError(
                expected_but_got(
                    expected, named(option, value), f"leave {option} out to use the default"
                )
            )


def check_fields(format: Any) -> None:
    """Raise ValueError for the first field of a number format whose value is not allowed."""
    check_options({field.name: getattr(format, field.name) for field in fields(format)})
