"""An NVFP4 operand, which is quantized tile by tile."""

from __future__ import annotations

import torch

from pytest_precision.formats import e2m1
from pytest_precision.formats.quantized import Operand, ScaleKind, Storage
from pytest_precision.formats.tiles import FLOAT_BITS, Tile, empty_scratch

NVFP4_BLOCK = 16

NAN = 7
"""The code that the kernels store for NaN: e2m1 has no NaN, so they saturate to 6."""

TORCHAO_NAN = 0xB
"""The code that torchao's conversion gives for the NaN that an x86 processor computes: -1.5."""


class PackedOperand:
    """The packed codes and scales of an NVFP4 operand while it is being quantized.

    Attributes:
        block: rows and columns of the source that share a scale.
        amax: fp32, the amax of the source [1], or of each row of the operand [rows].
    """

    def __init__(
        self,
        source: torch.Tensor,
        amax: torch.Tensor,
        kind: ScaleKind,
        random_bits: torch.Tensor | None,
        *,
        transposed: bool,
    ) -> None:
        """Allocate the memory of the quantized operand without filling it.

        Args:
            source: the matrix to quantize, [rows, columns].
            amax: fp32, the amax of the source [1], or of each row of the operand [rows].
            kind: how a scale is read back.
            random_bits: uint8 in the shape of the unpacked operand; None to round to nearest.
            transposed: whether the operand is that of the transposed source.
        """
        rows, columns = source.shape[::-1] if transposed else source.shape
        self.block = (NVFP4_BLOCK, 1) if transposed else (1, NVFP4_BLOCK)
        self.amax = amax
        self._kind: ScaleKind = kind
        self._transposed = transposed
        self._random_bits = random_bits
        self._data = torch.empty((rows, columns // 2), dtype=torch.uint8, device=source.device)
        self._scale = torch.empty(
            (rows, columns // NVFP4_BLOCK), dtype=torch.uint8, device=source.device
        )

    def amax_of(self, tile: Tile) -> torch.Tensor:
        """Return the tensor's amax, or the amaxes of the operand's rows that a tile covers.

        They have a shape that broadcasts to the tile.
        """
        if self.amax.numel() == 1:
            return self.amax
        if self._transposed:
            return self.amax[tile.columns].unsqueeze(0)
        return self.amax[tile.rows].unsqueeze(1)

    def codes(self, tile: Tile, multiplier: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
        """Compute the 4-bit code of each element of a tile, one per byte.

        The result lies in memory that the next call overwrites.

        Args:
            tile: a part of the source.
            multiplier: fp32, the factor per block of the tile.
            block: the size of those blocks.
        """
        magnitude = tile.scaled(multiplier, block).abs_()
        # torchao may multiply by infinity, and 0 times infinity is NaN.
        torchao = self._kind == "nvfp4_torchao"
        nan = magnitude.isnan() if torchao else tile.source.isnan() if tile.has_nan else None
        shape = tuple(magnitude.shape)
        least, other_tensor = (empty_scratch(name, shape, magnitude) for name in ("least", "other"))
        if self._random_bits is None:
            rounded_tensor = e2m1.codes_(magnitude, least, other_tensor)
        else:
            bits = self._random_bits.t() if self._transposed else self._random_bits
            random = empty_scratch("random", shape, magnitude).copy_(bits[tile.rows, tile.columns])
            rounded_tensor = e2m1.stochastic_codes_(magnitude, random, least, other_tensor)
        # The cast keeps the low byte, which holds nothing but the code.
        codes = empty_scratch("bytes", shape, magnitude, torch.uint8).copy_(rounded_tensor)
        codes.bitwise_or_(_sign_bits(tile.source))
        if nan is not None:
            codes.masked_fill_(nan, TORCHAO_NAN if torchao else NAN)
        return codes

    def store(self, tile: Tile, codes: torch.Tensor, scale: torch.Tensor) -> None:
        """Pack the codes of a tile into the operand's bytes, and store the scales of its blocks.

        Args:
            tile: a part of the source.
            codes: uint8, in the shape of the tile.
            scale: uint8, the scale per block of the tile; blocks may be larger than `block`.
        """
        if self._transposed:
            data = self._data.t()
            pack = e2m1.pack_rows
            down, across = _shrunk(tile.rows, 2), tile.columns
            scale_down = _shrunk(tile.rows, NVFP4_BLOCK)
            scale_across = tile.columns
        else:
            data = self._data
            pack = e2m1.pack_columns
            down, across = tile.rows, _shrunk(tile.columns, 2)
            scale_down = tile.rows
            scale_across = _shrunk(tile.columns, NVFP4_BLOCK)
        pack(codes, data[down, across])
        target = (self._scale.t() if self._transposed else self._scale)[scale_down, scale_across]
        for axis in (0, 1):
            if scale.shape[axis] != target.shape[axis]:
                scale = scale.repeat_interleave(NVFP4_BLOCK, axis)
        target.copy_(scale)

    def finished(self) -> Operand:
        """Return the finished operand; `store` must have been called with every tile."""
        storage = Storage(e2m1.E2M1, self._kind, (1, NVFP4_BLOCK), self._transposed)
        return Operand(self._data, self._scale, self.amax, storage)


def _sign_bits(source: torch.Tensor) -> torch.Tensor:
    """Return 8, the sign bit of a 4-bit code, for each negative element, else 0; uint8."""
    integer = FLOAT_BITS[source.dtype].dtype
    shape = tuple(source.shape)
    signs = torch.bitwise_right_shift(
        source.view(integer),
        8 * source.element_size() - 4,
        out=empty_scratch("signs", shape, source, integer),
    )
    return empty_scratch("sign bytes", shape, source, torch.uint8).copy_(signs.bitwise_and_(8))


def _shrunk(span: slice, divisor: int) -> slice:
    return slice(span.start // divisor, span.stop // divisor)
