"""fp8 with one fp32 scale per 128 elements of a row, or per 128 x 128 elements of a weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch

from pytest_precision.formats.elements import ELEMENT_OF_NAME
from pytest_precision.formats.format import Makers, Reducible
from pytest_precision.formats.in_blocks import BlockOperand, InBlocks
from pytest_precision.formats.inputs import Usage, checked_usage
from pytest_precision.formats.quantized import Operand, QuantizedTensor, Storage
from pytest_precision.formats.scaling import FP32_MAXIMUM, scale_from_amax
from pytest_precision.formats.tiles import Block, own_transpose, tiles

FP8_BLOCK = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockScaling(InBlocks):
    """Fp8 with one scale per block of 1x128 or 128x128 elements.

    Attributes:
        name: name of the format.
        element: e4m3 or e5m2.
        two_dimensional: whether blocks are 128 x 128 rather than 1 x 128. If they are, the
            columnwise operand is the transpose of the rowwise one; if not, it is the transposed
            matrix, quantized by itself.
        power_of_two: whether scales are rounded down to powers of two.
        epsilon: lower bound of a block's amax; a smaller amax is replaced by it.
        if_infinite: the scale of a block whose amax is too small to divide by; None for the largest
            finite number of the input's dtype, as in the kernels.
    """

    side: ClassVar = FP8_BLOCK

    power_of_two: bool = True
    epsilon: float = 0.0
    if_infinite: float | None = None

    def of_masters(self) -> Reducible:
        """Return this format's variant for masters: overflowing scales become fp32's maximum."""
        return replace(self, if_infinite=FP32_MAXIMUM)

    def _quantize(
        self,
        x: torch.Tensor,
        usage: Usage,
        block_amaxes: Mapping[Block, torch.Tensor] | None = None,
    ) -> QuantizedTensor:
        rowwise, columnwise = checked_usage(usage)
        parts: dict[str, BlockOperand] = {}
        if self.two_dimensional:
            parts["rowwise"] = BlockOperand(x, self.element, (FP8_BLOCK, FP8_BLOCK), torch.float32)
        elif rowwise:
            parts["rowwise"] = BlockOperand(x, self.element, (1, FP8_BLOCK), torch.float32)
        if columnwise and not self.two_dimensional:
            parts["columnwise"] = BlockOperand(
                x, self.element, (FP8_BLOCK, 1), torch.float32, transposed=True
            )
        block = (max(part.block[0] for part in parts.values()), FP8_BLOCK)
        for tile in tiles(x, block, block_amaxes):
            scales = [self._scale(tile.amax(part.block), x.dtype) for part in parts.values()]
            for part, scale in zip(parts.values(), scales, strict=True):
                part.fill(tile, scale.reciprocal(), scale)
        operands = {side: part.finished() for side, part in parts.items()}
        if self.two_dimensional and columnwise:
            operands["columnwise"] = _transposed_operand(operands["rowwise"])
        return QuantizedTensor(
            self.name,
            (x.shape[0], x.shape[1]),
            {side: operand for side, operand in operands.items() if usage in ("both", side)},
        )

    def _scale(self, amax: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return scale_from_amax(
            amax,
            self.element.maximum,
            power_of_two=self.power_of_two,
            epsilon=self.epsilon,
            if_infinite=self.if_infinite or torch.finfo(dtype).max,
        )


def _transposed_operand(operand: Operand) -> Operand:
    storage = Storage(
        operand.storage.element, operand.storage.scale, operand.storage.block, transposed=True
    )
    return Operand(own_transpose(operand.data), own_transpose(operand.scale), operand.amax, storage)


FORMATS: Makers = {
    f"fp8_block_{block}_{element}_{scales}": partial(
        BlockScaling,
        element=ELEMENT_OF_NAME[element],
        two_dimensional=block == "128x128",
        power_of_two=scales == "pow2",
    )
    for block in ("1x128", "128x128")
    for element in ELEMENT_OF_NAME
    for scales in ("pow2", "f32")
}
