"""MXFP8: fp8 with one power-of-two scale (e8m0) for 32 elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from pytest_precision.formats.amaxes import block_amaxes, by_block
from pytest_precision.formats.blocks import BlockOperand
from pytest_precision.formats.elements import Element
from pytest_precision.formats.inputs import Usage, checked_matrix, checked_usage, refuse_random_bits
from pytest_precision.formats.quantized import QuantizedTensor
from pytest_precision.formats.scaling import e8m0_ceil, e8m0_floor
from pytest_precision.formats.tiles import Block, Tile, tiles

SIDE = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Mxfp8:
    """MXFP8.

    Both operands are quantized from high precision, and neither is stored transposed: the rowwise
    one has blocks of 32 along a row, the columnwise one along a column.

    Attributes:
        name: of the format.
        element: e4m3 or e5m2.
        two_dimensional: one scale for 32 x 32, stored 32 times; both operands then hold the same
            bytes.
        rounding: of the scale: up, so that nothing saturates ("ceil", Transformer Engine), or down
            ("floor": the OCP document and torchao).
    """

    name: str
    element: Element
    two_dimensional: bool = False
    rounding: Literal["ceil", "floor"] = "ceil"

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
        return block_amaxes(checked_matrix(x), self._blocks)

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
    def _blocks(self) -> tuple[Block, ...]:
        return ((SIDE, SIDE),) if self.two_dimensional else ((1, SIDE), (SIDE, 1))

    def _quantize(
        self, x: torch.Tensor, usage: Usage, known: Mapping[Block, torch.Tensor] | None = None
    ) -> QuantizedTensor:
        rowwise, columnwise = checked_usage(usage)
        parts: dict[str, BlockOperand] = {}
        if rowwise:
            parts["rowwise"] = BlockOperand(x, self.element, (1, SIDE), torch.uint8)
        if columnwise:
            parts["columnwise"] = BlockOperand(x, self.element, (SIDE, 1), torch.uint8)
        rows = SIDE if columnwise or self.two_dimensional else 1
        columns = SIDE if rowwise or self.two_dimensional else 1
        for tile in tiles(x, (rows, columns), known):
            scales = [self._scales(tile, part.block) for part in parts.values()]
            for part, (scale, multiplier) in zip(parts.values(), scales, strict=True):
                part.fill(tile, scale, multiplier)
        return QuantizedTensor(
            self.name,
            (x.shape[0], x.shape[1]),
            {side: part.finished() for side, part in parts.items()},
        )

    def _scales(self, tile: Tile, block: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes of the blocks of a tile, and what to multiply them by."""
        square = (SIDE, SIDE) if self.two_dimensional else block
        if self.rounding == "floor":
            scales = e8m0_floor(tile.amax(square, keep_nan=True), self.element)
        else:
            scales = e8m0_ceil(tile.amax(square), self.element)
        if not self.two_dimensional:
            return scales
        axis = 0 if block[0] == 1 else 1
        return scales[0].repeat_interleave(SIDE, axis), scales[1].repeat_interleave(SIDE, axis)
