"""Validate the options of number formats, and the arguments of `quantize`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from math import inf
from typing import Any, Literal

import torch

from pytest_precision.errors import expect_one_of, expected_but_got, named
from pytest_precision.formats.elements import Element

INPUT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

Usage = Literal["both", "rowwise", "columnwise"]
"""The operands to make; each costs its own pass over the input."""

USAGES = ("both", "rowwise", "columnwise")


def checked_matrix(x: Any, multiple: int = 1) -> torch.Tensor:
    """Return `x`, detached, if formats can quantize it; raise otherwise.

    Args:
        x: the argument of the caller.
        multiple: the number that both dimensions must be multiples of.

    Raises:
        TypeError: `x` is not a tensor, or its dtype is not one of `INPUT_DTYPES`.
        ValueError: `x` does not have two dimensions, these are not multiples, or `x` has no values.
    """
    if not isinstance(x, torch.Tensor):
        raise TypeError(
            expected_but_got("a torch.Tensor", named("x", x), "wrap it with torch.as_tensor")
        )
    if x.dtype not in INPUT_DTYPES:
        dtypes = ", ".join(map(str, INPUT_DTYPES))
        raise TypeError(
            expected_but_got(
                f"x of a dtype in ({dtypes})", f"x.dtype={x.dtype} (dtype)", "cast x first"
            )
        )
    if x.dim() != 2:
        raise ValueError(
            expected_but_got(
                "a matrix",
                f"x.shape={tuple(x.shape)} (Size)",
                "flatten the leading dimensions first: x.flatten(0, -2)",
            )
        )
    if x.shape[0] % multiple or x.shape[1] % multiple:
        raise ValueError(
            expected_but_got(
                f"dimensions that are multiples of {multiple}",
                f"x.shape={tuple(x.shape)} (Size)",
                "pad x with zeros",
            )
        )
    if x.is_meta:
        raise ValueError(
            expected_but_got(
                "x with data",
                f"x.device={x.device} (device)",
                "give a tensor on a CPU or GPU",
            )
        )
    return x.detach().resolve_neg()


def checked_usage(usage: Usage) -> tuple[bool, bool]:
    """Return (rowwise, columnwise): whether `usage` asks for each operand; raise if it is unknown.

    Raises:
        ValueError: `usage` is not one of `USAGES`.
    """
    expect_one_of("usage", usage, USAGES)
    return usage != "columnwise", usage != "rowwise"


def refuse_random_bits(random_bits: object, name: str) -> None:
    """Raise TypeError if random bits are passed to a format that rounds to nearest.

    Raises:
        TypeError: `random_bits` is not None.
    """
    if random_bits is not None:
        raise TypeError(
            expected_but_got(
                "random_bits=None",
                f"random_bits=... ({type(random_bits).__name__}), and {name} rounds to nearest",
                "leave random_bits out, or use a format whose name ends in _sr",
            )
        )


RandomBits = tuple[torch.Tensor | None, torch.Tensor | None]
"""uint8 [rows, columns] for the rowwise operand, [columns, rows] for the columnwise one."""


def checked_random_bits(random_bits: Any, x: torch.Tensor, usage: Usage, name: str) -> RandomBits:
    """Return `random_bits` if it is a pair with the tensors that `usage` needs; raise otherwise.

    Raises:
        TypeError: `random_bits` is not a pair, or what `usage` needs is not a uint8 tensor.
        ValueError: a tensor that `usage` needs has another shape.
    """
    if not isinstance(random_bits, tuple) or len(random_bits) != 2:
        raise TypeError(
            expected_but_got(
                f"a pair of random bits for {name}",
                f"random_bits=... ({type(random_bits).__name__})",
                "draw uint8 tensors of shapes [rows, columns] and [columns, rows] with "
                "torch.randint(0, 256, ...)",
            )
        )
    sides = zip(("rowwise", "columnwise"), checked_usage(usage), strict=True)
    for (side, needed), bits, shape in zip(
        sides, random_bits, (x.shape, x.shape[::-1]), strict=True
    ):
        if not needed:
            continue
        if not isinstance(bits, torch.Tensor) or bits.dtype is not torch.uint8:
            kind = bits.dtype if isinstance(bits, torch.Tensor) else type(bits).__name__
            raise TypeError(
                expected_but_got(
                    f"{side} random bits of dtype torch.uint8",
                    f"{kind} (dtype)",
                    "draw them with torch.randint(0, 256, ..., dtype=torch.uint8)",
                )
            )
        if bits.shape != shape:
            raise ValueError(
                expected_but_got(
                    f"{side} random bits of shape {tuple(shape)}",
                    f"random_bits.shape={tuple(bits.shape)} (Size)",
                    "draw one byte per element",
                )
            )
    return random_bits


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
        option: (f"one of {', '.join(map(str, choices))}", choices.__contains__)
        for option, choices in _CHOICES.items()
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
