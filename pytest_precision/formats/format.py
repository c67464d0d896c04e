"""The interface that all number formats implement, and its defaults."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from pytest_precision.errors import expected_but_got
from pytest_precision.formats.inputs import Usage, checked_matrix, refuse_random_bits
from pytest_precision.formats.quantized import QuantizedTensor


class RandomSource(Protocol):
    """A source that yields the random bits of stochastic rounding."""

    @property
    def seed(self) -> int:
        """The seed of the generator that draws the random bits."""

    def bits(
        self, shape: tuple[int, int], device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw random bytes: [rows, columns] for a rowwise operand, then [columns, rows].

        The second tensor is for the columnwise operand.
        """


class Format(ABC):
    """A number format: the rules by which a matrix is quantized, such as those of MXFP8.

    A subclass defines `name` and `quantize`. By default a format takes matrices of any size,
    rounds to nearest and has no state.

    Attributes:
        name: the name that `by_name` takes.
    """

    __slots__ = ()

    name: str

    @abstractmethod
    def quantize(
        self, x: torch.Tensor, random_bits: Any = None, *, usage: Usage = "both"
    ) -> QuantizedTensor:
        """Quantize a matrix [rows, columns] of fp32, bf16 or fp16."""

    @property
    def block_multiple(self) -> int:
        """The number by which rows and columns must be divisible; layers pad with zeros to that."""
        return 1

    @property
    def stochastic(self) -> bool:
        """Whether elements are rounded up or down at random (stochastic rounding)."""
        return False

    @property
    def has_state(self) -> bool:
        """Whether a cast depends on earlier casts; `update` then advances the state by one step."""
        return False

    def checked(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x`, detached, if this format can quantize it; raise otherwise.

        Raises:
            TypeError: `x` is not a tensor, or its dtype is not fp32, bf16 or fp16.
            ValueError: `x` is not a matrix, has an unsuitable size, or has no values (meta).
        """
        return checked_matrix(x, multiple=self.block_multiple)

    def random_bits(
        self, source: RandomSource, shape: tuple[int, int], device: torch.device
    ) -> Any:
        """Return random bits for a matrix of this shape; None unless rounding is stochastic."""
        return source.bits(shape, device) if self.stochastic else None

    def of_masters(self) -> Reducible:
        """Return the format that casts shards of fp32 master weights to quantized parameters.

        Raises:
            TypeError: this format cannot compute amaxes apart from the cast.
        """
        raise TypeError(
            expected_but_got(
                "a format whose amaxes can be reduced over ranks",
                f"{self.name} ({type(self).__name__})",
                "derive it from formats.Reducible, or keep sharded primary weights in high "
                "precision",
            )
        )

    def update(self) -> None:  # noqa: B027 (most formats have no state)
        """Advance the state of delayed scaling by one step; other formats do nothing."""

    def leave_updates_to_owner(self) -> None:  # noqa: B027
        """Mark this format as updated when its weight is quantized, so that layers skip it."""


class Reducible(Format):
    """A format whose amaxes can be computed before the cast and reduced over ranks in between.

    Each rank calls `amaxes` on a matrix of the elements that it holds, with zeros elsewhere. The
    maximum over the ranks gives the amaxes of the whole matrix; with it `quantize_with` casts any
    part of the matrix as it would be cast within the whole. Formats that apply a Hadamard transform
    or round stochastically cannot do this.
    """

    __slots__ = ()

    def quantize(
        self, x: torch.Tensor, random_bits: Any = None, *, usage: Usage = "both"
    ) -> QuantizedTensor:
        """Quantize a matrix by amaxes that are computed from it.

        Raises:
            TypeError: `x` is not a tensor of fp32, bf16 or fp16, or random bits are given.
            ValueError: `x` is not a matrix with values, or `usage` is unknown.
        """
        refuse_random_bits(random_bits, self.name)
        return self.quantize_with(x, self._reduced(self.amaxes(x)), usage=usage)

    @abstractmethod
    def amaxes(self, x: torch.Tensor) -> torch.Tensor:
        """Compute all amaxes from which the scales of a matrix are made; fp32, one dimension."""

    @abstractmethod
    def quantize_with(
        self, x: torch.Tensor, amaxes: torch.Tensor, *, usage: Usage = "both"
    ) -> QuantizedTensor:
        """Quantize a matrix by the amaxes that a caller passes, not by ones computed from x."""

    def _reduced(self, amaxes: torch.Tensor) -> torch.Tensor:
        """Return the amaxes that `quantize` uses: `amaxes` unless a subclass reduces them."""
        return amaxes

    def of_masters(self) -> Reducible:
        """Return the format that casts master weights: by default, this format.

        Override it where another kernel casts masters.
        """
        return self


Makers = Mapping[str, Callable[..., Format]]
"""Name of a format to a callable that makes it from `name` and options."""
