"""The base class of the fp8 formats with one scale per block."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from pytest_precision.formats.block_amaxes import amaxes_of_blocks, by_block
from pytest_precision.formats.elements import Element
from pytest_precision.formats.format import Reducible
from pytest_precision.formats.inputs import Usage, checked_matrix, refuse_random_bits
from pytest_precision.formats.options import check_fields
from pytest_precision.formats.quantized import QuantizedTensor
from pytest_precision.formats.tiles import Block


@dataclass(frozen=True, kw_only=True, slots=True)
class InBlocks(Reducible):
    """A format in which each scale depends only on the amax of its own block.

    Attributes:
        side: elements of a row or column that share a scale.
        name: name of the format.
        element: e4m3 or e5m2.
        two_dimensional: whether blocks are squares that serve both operands; otherwise the rowwise
            operand has blocks along rows, and the columnwise operand along columns.
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
            TypeError: `x` is not a tensor of fp32, bf16 or fp16, or random bits are given.
            ValueError: `x` is not a matrix with values, or `usage` is unknown.
        """
        refuse_random_bits(random_bits, self.name)
        return self._quantize(checked_matrix(x), usage)

    def amaxes(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the amaxes of all blocks of both operands; fp32, flat."""
        return amaxes_of_blocks(checked_matrix(x), self._blocks, keep_nan=self._keeps_nan)

    def quantize_with(
        self, x: torch.Tensor, amaxes: torch.Tensor, *, usage: Usage = "both"
    ) -> QuantizedTensor:
        """Quantize a matrix by given amaxes instead of its own.

        Raises:
            TypeError: `quantize` would raise it, or `amaxes` is not fp32.
            ValueError: `quantize` would raise it, or `amaxes` has another number of elements.
        """
        x = checked_matrix(x)
        return self._quantize(x, usage, by_block(amaxes, x, self._blocks))

    @property
    def _keeps_nan(self) -> bool:
        """Whether a block with a NaN has the amax NaN; Transformer Engine's kernels ignore NaN."""
        return False

    @property
    def _blocks(self) -> tuple[Block, ...]:
        side = self.side
        return ((side, side),) if self.two_dimensional else ((1, side), (side, 1))

    @abstractmethod
    def _quantize(
        self, x: torch.Tensor, usage: Usage, known: Mapping[Block, torch.Tensor] | None = None
    ) -> QuantizedTensor:
        """Quantize a matrix by the amaxes in `known`, or by its own if `known` is None."""
