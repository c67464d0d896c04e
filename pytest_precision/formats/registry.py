"""The formats by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch

from pytest_precision.formats.blockwise import BlockScaling
from pytest_precision.formats.delayed import DelayedScaling
from pytest_precision.formats.elements import ELEMENTS
from pytest_precision.formats.inputs import Usage
from pytest_precision.formats.mxfp8 import Mxfp8
from pytest_precision.formats.nvfp4 import Nvfp4
from pytest_precision.formats.per_tensor import CurrentScaling
from pytest_precision.formats.quantized import QuantizedTensor


class Format(Protocol):
    """What every format can do."""

    @property
    def name(self) -> str:
        """As `by_name` knows it."""

    def quantize(
        self, x: torch.Tensor, random_bits: Any = None, *, usage: Usage = "both"
    ) -> QuantizedTensor:
        """Quantize a matrix of fp32, bf16 or fp16."""


class Reducible(Format, Protocol):
    """A format whose amaxes are found apart from the cast, so that ranks can reduce them.

    Of zeros and the elements that a rank holds, each rank's `amaxes`; the largest of all ranks' are
    those of the whole matrix, and `quantize_with` casts any part of it as the whole would be.
    Formats that transform or round stochastically cannot.
    """

    def amaxes(self, x: torch.Tensor) -> torch.Tensor:
        """All that the scales of a matrix are computed from; fp32, flat, one length a shape."""

    def quantize_with(
        self, x: torch.Tensor, amaxes: torch.Tensor, *, usage: Usage = "both"
    ) -> QuantizedTensor:
        """Quantize a matrix by amaxes that are not its own."""


def _formats() -> dict[str, Callable[..., Format]]:
    known: dict[str, Callable[..., Format]] = {}
    for text, element in ELEMENTS.items():
        known[f"fp8_current_{text}"] = partial(CurrentScaling, element=element)
        known[f"fp8_current_{text}_pow2"] = partial(
            CurrentScaling, element=element, power_of_two=True
        )
        for side, square in (("1x128", False), ("128x128", True)):
            for scales, power in (("pow2", True), ("f32", False)):
                known[f"fp8_block_{side}_{text}_{scales}"] = partial(
                    BlockScaling, element=element, two_dimensional=square, power_of_two=power
                )
        known[f"mxfp8_{text}"] = partial(Mxfp8, element=element)
        known[f"mxfp8_{text}_2d"] = partial(Mxfp8, element=element, two_dimensional=True)
        known[f"mxfp8_{text}_floor"] = partial(Mxfp8, element=element, rounding="floor")
        known[f"fp8_delayed_{text}"] = partial(DelayedScaling, element=text)
    known["fp8_delayed"] = DelayedScaling
    known["nvfp4_1d"] = Nvfp4
    known["nvfp4_1d_sr"] = partial(Nvfp4, stochastic=True)
    known["nvfp4_1d_rht"] = partial(Nvfp4, hadamard=True)
    known["nvfp4_1d_rht_sr"] = partial(Nvfp4, hadamard=True, stochastic=True)
    known["nvfp4_1d_torchao"] = partial(Nvfp4, scaling="torchao")
    known["nvfp4_2d"] = partial(Nvfp4, two_dimensional=True)
    return dict(sorted(known.items()))


_FORMATS = _formats()

_IN_NAMES = {
    field for made in _FORMATS.values() if isinstance(made, partial) for field in made.keywords
}
"""Fields that names speak of; a name that does not mention one means its default."""


def names() -> tuple[str, ...]:
    """The names of all formats, in alphabetical order."""
    return tuple(_FORMATS)


def by_name(name: str, **options: Any) -> Format:
    """A format; delayed scaling, which has a state, is a new one with each call.

    Args:
        name: one of `names()`.
        **options: fields of the format that the name leaves open, such as `reduce_amax`,
            `epsilon`, or `history_length`; and the `element` of `fp8_delayed`.

    Raises:
        ValueError: an unknown name; the known ones are listed. An option that the name speaks of,
            or a value that it cannot have.
        TypeError: an option that the format does not have.
    """
    if name not in _FORMATS:
        raise ValueError(
            f"expected a format but got name={name!r} ({type(name).__name__}); "
            f"use one of {', '.join(_FORMATS)}"
        )
    for option, value in options.items():
        if option in _IN_NAMES and (name, option) != ("fp8_delayed", "element"):
            raise ValueError(
                f"expected options that {name} leaves open but got {option}={value!r} "
                f"({type(value).__name__}); take the name that says so, of names()"
            )
    return _FORMATS[name](name=name, **options)
