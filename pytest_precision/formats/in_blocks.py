"""What the fp8 formats have in common that scale each block of a matrix by itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from pytest_precision.formats.amaxes import block_amaxes, by_block
from pytest_precision.formats.elements import Element
from pytest_precision.formats.format import Reducible
from pytest_precision.formats.inputs import Usage, checked_matrix, refuse_random_bits
from pytest_precision.formats.options import check_fields
from pytest_precision.formats.quantized import QuantizedTensor
from pytest_precision.formats.tiles import Block


@dataclass(frozen=True, kw_only=True, slots=True)
class InBlocks(Reducible):
    """A format whose scales depend on the amaxes of blocks alone.

    Attributes:
        name: of the format.
        element: e4m3 or e5m2.
        two_dimensional: blocks are squares, and serve both operands, rather than parts of a row for
            the one and of a column for the other.
    """

    side: ClassVar[int]

    name: str
    element: Element
    two_dimensional: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    def quantize(
        self, x: torch.Tensor, random_bits: None = None, *, usage: Usage = "both"
    ) -> QuantizedTensor:
        """Quantize a matrix; blocks at its edges may be partial.

        Raises:
            TypeError: `x` is no tensor of fp32, bf16 or fp16; there are random bits.
            ValueError: `x` is no matrix; an unknown usage.
        """
        refuse_random_bits(random_bits, self.name)
        return self._quantize(checked_matrix(x), usage)

    def amaxes(self, x: torch.Tensor) -> torch.Tensor:
        """The amaxes of all blocks of both operands, fp32, flat."""
        return block_amaxes(checked_matrix(x), self._blocks, keep_nan=self._keeps_nan)

    def quantize_with(
        self, x: torch.Tensor, amaxes: torch.Tensor, *, usage: Usage = "both"
    ) -> QuantizedTensor:
        """As `quantize`, by amaxes that are not those of `x`.

        Raises:
            TypeError: as `quantize`, and for amaxes that are not fp32.
            ValueError: as `quantize`, and for another number of amaxes.
        """
        x = checked_matrix(x)
        return self._quantize(x, usage, by_block(amaxes, x, self._blocks))

    @property
    def _keeps_nan(self) -> bool:
        """Whether a NaN is the amax of its block, rather than ignored as by the kernels."""
        return False

    @property
    def _blocks(self) -> tuple[Block, ...]:
        side = self.side
        return ((side, side),) if self.two_dimensional else ((1, side), (side, 1))

    @abstractmethod
    def _quantize(
        self, x: torch.Tensor, usage: Usage, known: Mapping[Block, torch.Tensor] | None = None
    ) -> QuantizedTensor:
        """The operands of a matrix, by the amaxes of its blocks unless others are known."""
