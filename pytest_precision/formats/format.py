"""Format: what every number format can do, and where one differs from the others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from pytest_precision.errors import expected_but_got
from pytest_precision.formats.inputs import Usage, checked_matrix, refuse_random_bits
from pytest_precision.formats.quantized import QuantizedTensor


class RandomSource(Protocol):
    """Where the random bits of stochastic rounding come from."""

    @property
    def seed(self) -> int:
        """Of a generator that draws them."""

    def bits(
        self, shape: tuple[int, int], device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw uint8 [rows, columns] for the rowwise operand, [columns, rows] for the other."""


class Format(ABC):
    """A number format.

    A subclass has a name and quantizes. Unless it says otherwise, it takes matrices of any size,
    rounds to nearest and has no state.

    Attributes:
        name: as `by_name` knows it.
    """

    __slots__ = ()

    name: str

    @abstractmethod
    def quantize(
        self, x: torch.Tensor, random_bits: Any = None, *, usage: Usage = "both"
    ) -> QuantizedTensor:
        """Quantize a matrix of fp32, bf16 or fp16."""

    @property
    def block_multiple(self) -> int:
        """What rows and columns must be multiples of; layers pad other matrices with zeros."""
        return 1

    @property
    def stochastic(self) -> bool:
        """Whether elements are rounded stochastically."""
        return False

    @property
    def has_state(self) -> bool:
        """Whether a cast depends on earlier ones; `update` then moves on by one step."""
        return False

    def checked(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x`, detached, if this format can quantize it.

        Raises:
            TypeError: no tensor of a dtype that it takes.
            ValueError: no matrix of a size that it takes.
        """
        return checked_matrix(x, multiple=self.block_multiple)

    def random_bits(
        self, source: RandomSource, shape: tuple[int, int], device: torch.device
    ) -> Any:
        """Return what `quantize` takes as random bits for a matrix of this shape, if anything."""
        return source.bits(shape, device) if self.stochastic else None

    def of_masters(self) -> Reducible:
        """Return this format as it casts shards of fp32 masters to primary weights.

        Raises:
            TypeError: its amaxes are not found apart from the cast.
        """
        raise TypeError(
            expected_but_got(
                "a format whose amaxes can be reduced over ranks",
                f"{self.name} ({type(self).__name__})",
                "make it a formats.Reducible, or leave primary weights that are sharded in "
                "high precision",
            )
        )

    def update(self) -> None:  # noqa: B027 (most formats have no state)
        """Move the state on by one step, where there is one."""

    def leave_updates_to_owner(self) -> None:  # noqa: B027
        """Have `update` called by whoever quantizes a primary weight, and by nobody else."""


class Reducible(Format):
    """A format whose amaxes are found apart from the cast, so that ranks can reduce them.

    Of zeros and the elements that a rank holds, each rank's `amaxes`; the largest of all ranks' are
    those of the whole matrix, and `quantize_with` casts any part of it as the whole would be.
    Formats that transform or round stochastically cannot.
    """

    __slots__ = ()

    def quantize(
        self, x: torch.Tensor, random_bits: Any = None, *, usage: Usage = "both"
    ) -> QuantizedTensor:
        """Quantize a matrix by its own amaxes.

        Raises:
            TypeError: `x` is no tensor of fp32, bf16 or fp16; there are random bits.
            ValueError: `x` is no matrix; an unknown usage.
        """
        refuse_random_bits(random_bits, self.name)
        return self.quantize_with(x, self.amaxes(x), usage=usage)

    @abstractmethod
    def amaxes(self, x: torch.Tensor) -> torch.Tensor:
        """Find all that the scales of a matrix are computed from; fp32, flat."""

    @abstractmethod
    def quantize_with(
        self, x: torch.Tensor, amaxes: torch.Tensor, *, usage: Usage = "both"
    ) -> QuantizedTensor:
        """Quantize a matrix by amaxes that are not its own."""

    def of_masters(self) -> Reducible:
        """Return this format itself, unless its kernel for masters computes otherwise."""
        return self


Makers = Mapping[str, Callable[..., Format]]
"""Names of formats to what makes them, given `name` and options."""
