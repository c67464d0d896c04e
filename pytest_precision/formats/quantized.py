"""Quantized matrices: bytes with scales, and their conversion back to values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from pytest_precision.errors import expected_but_got, named
from pytest_precision.formats.elements import E4M3, Coding, e8m0_decode
from pytest_precision.formats.inputs import INPUT_DTYPES
from pytest_precision.formats.scaling import NVFP4_RANGE
from pytest_precision.formats.tiles import empty_scratch, split_blocks, tile_spans

ScaleKind = Literal["fp32", "e8m0", "nvfp4", "nvfp4_256", "nvfp4_torchao"]
"""How a scale is read. "nvfp4" is e4m3 times a factor from the amax of the tensor, "nvfp4_256" the
same with scales up to 256 instead of 448; "nvfp4_torchao" has torchao's order of operations."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The memory layout of a quantized operand: element format, blocks and scales.

    Attributes:
        element: how numbers are coded.
        scale: how the scale is read.
        block: rows and columns of the matrix in `data` that share a scale; None if there is one
            scale per tensor.
        transposed: whether the bytes are those of the transposed matrix.
    """

    element: Coding
    scale: ScaleKind
    block: tuple[int, int] | None = None
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Operand:
    """A quantized matrix, stored rowwise or columnwise, as a GEMM reads it.

    Attributes:
        data: uint8 [rows, columns], transposed if `storage` says so, and half as wide if two
            elements share a byte.
        scale: the factor of a decoded element: fp32 (the kernels call it scale_inv), or uint8 codes
            of e8m0 or e4m3; one per block, without padding.
        amax: fp32, the largest magnitude of the tensor [1] or of each row of `data` [rows]; None if
            the format keeps none.
        storage: how `data` is laid out.
    """

    data: torch.Tensor
    scale: torch.Tensor
    amax: torch.Tensor | None
    storage: Storage

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the values [rows, columns], computed in fp32 and rounded once to `dtype`.

        For the columnwise operand of a format with a Hadamard transform these are the values of the
        transformed matrix, which its GEMM multiplies.

        Raises:
            TypeError: `dtype` is not a dtype that formats take as input.
        """
        if dtype not in INPUT_DTYPES:
            raise TypeError(
                expected_but_got(
                    f"a dtype in ({', '.join(map(str, INPUT_DTYPES))})",
                    named("dtype", dtype),
                    "cast the result instead",
                )
            )
        return self._decoded_tensor(dtype, self._factors)

    def summed(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the operand's fp32 values for a GEMM, and the factor for the GEMM's sums.

        In NVFP4 that is the scale of the whole tensor, apart from the factors of its blocks: its
        amax, and 6 times the largest scale, of both operands (`product.multiply`). A format without
        it, and one with an amax for each row, has none.
        """
        if not self._is_scaled_last():
            return self.dequantize(), None
        return self._decoded_tensor(torch.float32, lambda scale, _: _e4m3(scale)), self.amax

    @property
    def range(self) -> float:
        """Return the largest magnitude that NVFP4 stores, before the tensor's scale is applied."""
        return 256.0 * 6.0 if self.storage.scale == "nvfp4_256" else NVFP4_RANGE

    def _is_scaled_last(self) -> bool:
        has_one_amax = self.amax is not None and self.amax.numel() == 1
        return has_one_amax and self.storage.scale in ("nvfp4", "nvfp4_256")

    def _decoded_tensor(
        self,
        dtype: torch.dtype,
        factors: Callable[[torch.Tensor, slice], torch.Tensor],
    ) -> torch.Tensor:
        packed = self.storage.element.per_byte
        rows, columns = self.data.shape[0], self.data.shape[1] * packed
        out = torch.empty((rows, columns), dtype=dtype, device=self.data.device)
        block = self.storage.block
        for down, across in tile_spans(rows, columns, out.device, block[0] if block else 1):
            part = self.data[down, across.start // packed : across.stop // packed]
            target = out[down, across]
            # The first write to fresh memory is slow, so `out` is written once, not in place.
            values = empty_scratch("values", tuple(target.shape), part)
            product = target if dtype is torch.float32 else values
            self.storage.element.decode(part, values)
            if block is None:
                torch.mul(values, factors(self.scale, down), out=product)
            else:
                block_scales = self.scale[
                    down.start // block[0] : -(-down.stop // block[0]),
                    across.start // block[1] : -(-across.stop // block[1]),
                ]
                _multiply_blocks(values, factors(block_scales, down), block, product)
            if product is not target:
                target.copy_(product)
        return out.t() if self.storage.transposed else out

    def unpacked(self) -> torch.Tensor:
        """Return the codes in `data`, one byte per element."""
        return self.storage.element.unpacked(self.data)

    def _factors(self, scale: torch.Tensor, rows: slice) -> torch.Tensor:
        """Decode scales to the fp32 factors by which decoded elements are multiplied."""
        if self.storage.scale == "fp32":
            return scale
        if self.storage.scale == "e8m0":
            return e8m0_decode(scale)
        assert self.amax is not None
        decoded = _e4m3(scale)
        largest_tensor = torch.full_like(self.amax[:1], self.range)
        if self.storage.scale != "nvfp4_torchao":
            amax = self.amax if self.amax.numel() == 1 else self.amax[rows].unsqueeze(1)
            return decoded.mul_(amax).mul_(largest_tensor.reciprocal())
        tensor_scale = (self.amax / largest_tensor).masked_fill_(self.amax == 0, 1.0)
        return decoded.mul_(tensor_scale)


def _e4m3(scale: torch.Tensor) -> torch.Tensor:
    return E4M3.decode(scale, torch.empty_like(scale, dtype=torch.float32))


def _multiply_blocks(
    values: torch.Tensor, factors: torch.Tensor, block: tuple[int, int], out: torch.Tensor
) -> None:
    """Multiply each block of `values` by its factor, into `out`; edge blocks may be partial."""
    rows, columns = (
        min(size, length) or 1 for size, length in zip(block, values.shape, strict=True)
    )
    if values.shape[0] % rows or values.shape[1] % columns:
        whole = factors.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
        torch.mul(values, whole[: values.shape[0], : values.shape[1]], out=out)
    else:
        blocks, products = (split_blocks(matrix, (rows, columns)) for matrix in (values, out))
        torch.mul(blocks, factors[:, None, :, None], out=products)


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """A matrix that is quantized rowwise, columnwise or both.

    Attributes:
        format: name of the format.
        shape: shape of the matrix.
        operands: "rowwise", "columnwise" or both; each was quantized by itself from high precision
            unless the format says that one is the transpose of the other.
    """

    format: str
    shape: tuple[int, int]
    operands: dict[str, Operand]

    @property
    def rowwise(self) -> Operand:
        """The operand whose blocks lie along the columns of a row."""
        return self._operand("rowwise")

    @property
    def columnwise(self) -> Operand:
        """The operand whose blocks lie along the rows of a column."""
        return self._operand("columnwise")

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the values of the rowwise operand in `dtype`, rounded once from fp32."""
        return self.rowwise.dequantize(dtype)

    def _operand(self, side: str) -> Operand:
        if side not in self.operands:
            sides = ", ".join(self.operands)
            raise ValueError(
                expected_but_got(
                    f"a {side} operand",
                    named("usage", sides),
                    f"quantize with usage='both' or usage={side!r}",
                )
            )
        return self.operands[side]
