"""MXFP8: fp8 with one power-of-two scale (e8m0) per 32 elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch

from pytest_precision.formats.elements import ELEMENT_OF_NAME
from pytest_precision.formats.format import Makers
from pytest_precision.formats.in_blocks import BlockOperand, InBlocks
from pytest_precision.formats.inputs import Usage, checked_usage
from pytest_precision.formats.quantized import QuantizedTensor
from pytest_precision.formats.scaling import e8m0_ceil, e8m0_floor
from pytest_precision.formats.tiles import Block, Tile, tiles

MXFP8_BLOCK = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Mxfp8(InBlocks):
    """MXFP8: fp8 with one power-of-two scale per 32 elements.

    Both operands are quantized from high precision, and neither is stored transposed: the rowwise
    one has blocks of 32 along a row, the columnwise one along a column.

    Attributes:
        name: name of the format.
        element: e4m3 or e5m2.
        two_dimensional: whether 32 x 32 elements share a scale, which is stored 32 times; both
            operands then hold the same bytes.
        rounding: how the scale is rounded: up, so that nothing saturates ("ceil", as in Transformer
            Engine), or down ("floor", as in the OCP document and torchao).
    """

    side: ClassVar = MXFP8_BLOCK

    rounding: Literal["ceil", "floor"] = "ceil"

    def _quantize(
        self,
        x: torch.Tensor,
        usage: Usage,
        block_amaxes: Mapping[Block, torch.Tensor] | None = None,
    ) -> QuantizedTensor:
        rowwise, columnwise = checked_usage(usage)
        parts: dict[str, BlockOperand] = {}
        if rowwise:
            parts["rowwise"] = BlockOperand(x, self.element, (1, MXFP8_BLOCK), torch.uint8)
        if columnwise:
            parts["columnwise"] = BlockOperand(x, self.element, (MXFP8_BLOCK, 1), torch.uint8)
        rows = MXFP8_BLOCK if columnwise or self.two_dimensional else 1
        columns = MXFP8_BLOCK if rowwise or self.two_dimensional else 1
        for tile in tiles(x, (rows, columns), block_amaxes):
            scales = [self._scales(tile, part.block) for part in parts.values()]
            for part, (scale, multiplier) in zip(parts.values(), scales, strict=True):
                part.fill(tile, scale, multiplier)
        return QuantizedTensor(
            self.name,
            (x.shape[0], x.shape[1]),
            {side: part.finished() for side, part in parts.items()},
        )

    @property
    def _keeps_nan(self) -> bool:
        return self.rounding == "floor"

    def _scales(self, tile: Tile, block: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scale codes of the blocks of a tile, uint8, and their fp32 multipliers."""
        square = (MXFP8_BLOCK, MXFP8_BLOCK) if self.two_dimensional else block
        amax = tile.amax(square, keep_nan=self._keeps_nan)
        if self.rounding == "floor":
            scales = e8m0_floor(amax, self.element)
        else:
            scales = e8m0_ceil(amax, self.element)
        if not self.two_dimensional:
            return scales
        axis = 0 if block[0] == 1 else 1
        return scales[0].repeat_interleave(MXFP8_BLOCK, axis), scales[1].repeat_interleave(
            MXFP8_BLOCK, axis
        )


_VARIANTS: dict[str, dict[str, Any]] = {
    "": {},
    "_2d": {"two_dimensional": True},
    "_floor": {"rounding": "floor"},
}

FORMATS: Makers = {
    f"mxfp8_{element}{variant}": partial(Mxfp8, element=ELEMENT_OF_NAME[element], **options)
    for element in ELEMENT_OF_NAME
    for variant, options in _VARIANTS.items()
}
