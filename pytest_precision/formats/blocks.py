"""An 8-bit operand with one scale per block, which is quantized tile by tile."""

from __future__ import annotations

import torch

from pytest_precision.formats.elements import Element
from pytest_precision.formats.quantized import Operand, ScaleKind, Storage
from pytest_precision.formats.tiles import Tile, empty_scratch


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
