"""Fp8 with one scale per block: the base class of its formats, and their operands."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from pytest_precision.formats.block_amaxes import amaxes_of_blocks, by_block
from pytest_precision.formats.elements import Element
from pytest_precision.formats.format import Reducible
from pytest_precision.formats.inputs import Usage, check_fields, checked_matrix, refuse_random_bits
from pytest_precision.formats.quantized import Operand, QuantizedTensor, ScaleKind, Storage
from pytest_precision.formats.tiles import Block, Tile, empty_scratch


@dataclass(frozen=True, kw_only=True, slots=True)
class InBlocks(Reducible):
    """A format in which each scale depends only on the amax of the block that it scales.

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
        """Quantize a matrix by amaxes that the caller passes, not by ones computed from it.

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
        self,
        x: torch.Tensor,
        usage: Usage,
        block_amaxes: Mapping[Block, torch.Tensor] | None = None,
    ) -> QuantizedTensor:
        """Quantize a matrix by the amaxes in `block_amaxes`, or computed ones if that is None."""


class BlockOperand:
    """The bytes and scales of an 8-bit operand while it is being quantized.

    Attributes:
        block: rows and columns of the input that share a scale.
    """

    def __init__(
        self,
        x: torch.Tensor,
        element: Element,
        block: tuple[int, int],
        scale_dtype: torch.dtype,
        *,
        transposed: bool = False,
    ) -> None:
        """Allocate the memory of the quantized operand without filling it.

        Args:
            x: the input.
            element: e4m3 or e5m2.
            block: rows and columns of the input that share a scale.
            scale_dtype: float32, or uint8 for e8m0 codes.
            transposed: store the bytes and scales of the transposed input.
        """
        self.block = block
        self._element = element
        self._transposed = transposed
        shape = (x.shape[0], x.shape[1])
        scales = (-(-shape[0] // block[0]), -(-shape[1] // block[1]))
        if transposed:
            shape, scales = shape[::-1], scales[::-1]
        self._data = torch.empty(shape, dtype=torch.uint8, device=x.device)
        self._scale = torch.empty(scales, dtype=scale_dtype, device=x.device)

    def fill(self, tile: Tile, scale: torch.Tensor, multiplier: torch.Tensor) -> None:
        """Quantize one tile of the input into the operand's bytes, and store its scales.

        Args:
            tile: a part of the input, in whole blocks.
            scale: the scale to store per block of the tile.
            multiplier: fp32, the factor per block of the tile.
        """
        scaled = tile.cut(tile.scaled(multiplier, self.block))
        data, scales = self._data, self._scale
        if self._transposed:
            data, scales = data.t(), scales.t()
        target = data[tile.rows, tile.columns]
        if self._transposed:
            # torch transposes in cache-sized blocks when it copies bytes, but not when it casts.
            casted = empty_scratch("bytes", tuple(target.shape), scaled, torch.uint8)
            self._element.cast_(scaled, casted)
            target.copy_(casted)
        else:
            self._element.cast_(scaled, target)
        top, left = tile.rows.start // self.block[0], tile.columns.start // self.block[1]
        region = scales[top : top + scale.shape[0], left : left + scale.shape[1]]
        region.copy_(scale[: region.shape[0], : region.shape[1]])

    def finished(self) -> Operand:
        """Return the finished operand; `fill` must have been called with every tile."""
        rows, columns = self.block[::-1] if self._transposed else self.block
        kind: ScaleKind = "fp32" if self._scale.dtype is torch.float32 else "e8m0"
        storage = Storage(self._element, kind, (rows, columns), self._transposed)
        return Operand(self._data, self._scale, None, storage)
