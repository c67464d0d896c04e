"""Split a matrix into fp32 tiles that fit the CPU cache, with reused scratch memory.

Quantizing takes 8 to 30 passes over fp32 copies of the input. On whole matrices each pass causes
page faults and runs at the speed of memory; a tile of 2**18 elements stays in the cache.

With several threads, each of the many small passes waits for all of them, so on busy cores one
thread (`torch.set_num_threads(1)`, as in the ranks) is much faster than two.

torch.compile of the plain arithmetic gives the same bits, but is slower than tiles for most
formats. Where it is faster, it saves more time than it costs only after 60 or more matrices of
4096 x 4096 of one shape, not counting the 10 s of its first use (`ci/bench/formats.py --compile`).
So nothing here is compiled.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from math import prod
from typing import NamedTuple

import torch

CPU_ELEMENTS = 1 << 18
"""Elements of a tile per thread of torch, on a CPU."""

CPU_THREADS = 4
"""Threads that enlarge a tile; this bounds the scratch that a thread keeps (4 MiB per buffer)."""

DEVICE_ELEMENTS = 1 << 26
"""Elements of a tile on other devices, whose allocator caches the scratch itself."""

HEIGHT = 64
TILE_WIDTH = 4096
"""Least rows and columns of a tile in a matrix that has as many; measured on 4096 x 4096.

Long pieces of a row are faster to read, and this number of rows makes the pieces of a transposed
result long enough to be written fast. `TILE_WIDTH` is a multiple of every block size.
"""

_VECTORS = 32

Block = tuple[int, int]
"""Rows and columns that share a scale."""


class FloatBits(NamedTuple):
    """Bit masks of a floating-point dtype, whose magnitudes are compared as integers.

    Attributes:
        dtype: the integer dtype of the same size.
        magnitude: all bits but the sign.
        infinity: the bits of infinity; the bits of every NaN are larger.
    """

    dtype: torch.dtype
    magnitude: int
    infinity: int


FLOAT_BITS = {
    torch.float32: FloatBits(torch.int32, 0x7FFFFFFF, 0x7F800000),
    torch.bfloat16: FloatBits(torch.int16, 0x7FFF, 0x7F80),
    torch.float16: FloatBits(torch.int16, 0x7FFF, 0x7C00),
}


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.buffers: dict[tuple[str, torch.dtype], torch.Tensor] = {}


_thread_scratch = _Scratch()


def empty_scratch(
    name: str, shape: tuple[int, ...], like: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return scratch memory as an uninitialised tensor, on the device of `like`.

    It is valid until the next call with this name and dtype on the same thread.
    """
    if like.device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=like.device)
    needed = prod(shape)
    buffer = _thread_scratch.buffers.get((name, dtype))
    if buffer is None or buffer.numel() < needed:
        # A tensor that was made in inference mode could not be written to outside of it.
        with torch.inference_mode(False):
            buffer = torch.empty(needed, dtype=dtype, device="cpu")
        _thread_scratch.buffers[name, dtype] = buffer
    return buffer[:needed].view(shape)


class Tile:
    """A part of a matrix in whole blocks: elements beyond the edges of the matrix count as 0.

    Attributes:
        rows: the rows of the matrix that it holds.
        columns: the columns of the matrix that it holds.
        source: the part of the matrix.
        has_nan: whether `amax` has found a NaN and ignored it.
    """

    def __init__(
        self,
        x: torch.Tensor,
        rows: slice,
        columns: slice,
        block: Block,
        block_amaxes: Mapping[Block, torch.Tensor] | None = None,
    ) -> None:
        self.rows = rows
        self.columns = columns
        self.source = x[rows, columns]
        self.has_nan = False
        self._shape = tuple(map(_whole, self.source.shape, block))
        self._magnitudes: torch.Tensor | None = None
        self._block_amaxes = block_amaxes

    def amax(self, block: Block, *, keep_nan: bool = False) -> torch.Tensor:
        """Compute the largest magnitude of each block, fp32 [blocks of rows, blocks of columns].

        If the tile was made with known amaxes, these are returned; the tile is still searched for
        NaN.

        NaN is ignored unless `keep_nan`: the `fmaxf` of the kernels, which starts at 0, ignores it
        too, whereas torch's amax propagates it. Bits are compared instead of numbers, since
        integers are faster to reduce, above all those of 16-bit inputs.
        """
        bits = FLOAT_BITS[self.source.dtype]
        if self._magnitudes is None:
            self._magnitudes = self._scratch("bits", bits.dtype)
            torch.bitwise_and(
                self.source.view(bits.dtype), bits.magnitude, out=self.cut(self._magnitudes)
            )
        peaks = _block_amax(self._magnitudes, block)
        if not keep_nan and peaks.numel() and int(peaks.amax()) > bits.infinity:
            self.has_nan = True
            self._magnitudes.masked_fill_(self._magnitudes > bits.infinity, 0)
            peaks = _block_amax(self._magnitudes, block)
        amaxes = peaks.view(self.source.dtype).float()
        if self._block_amaxes is not None:
            known_amaxes = self.of_blocks(self._block_amaxes[block], block)
            amaxes[: known_amaxes.shape[0], : known_amaxes.shape[1]] = known_amaxes
        return amaxes

    def of_blocks(self, matrix: torch.Tensor, block: Block) -> torch.Tensor:
        """Cut out this tile's part of a matrix that has one element per block."""
        rows, columns = block
        return matrix[
            self.rows.start // rows : -(-self.rows.stop // rows),
            self.columns.start // columns : -(-self.columns.stop // columns),
        ]

    def scaled(self, multiplier: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
        """Multiply each block of the tile by its multiplier; return fp32 in scratch memory."""
        scaled_tensor = self._scratch("scaled", torch.float32)
        self.cut(scaled_tensor).copy_(self.source)
        split_blocks(scaled_tensor, block).mul_(multiplier[:, None, :, None])
        return scaled_tensor

    def cut(self, padded: torch.Tensor) -> torch.Tensor:
        """Cut a tensor that is padded to whole blocks to the part inside the matrix."""
        return padded[: self.source.shape[0], : self.source.shape[1]]

    def _scratch(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        scratch = empty_scratch(name, self._shape, self.source, dtype)
        return scratch.zero_() if self.source.shape != self._shape else scratch


def split_blocks(matrix: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """View a matrix of whole blocks as [blocks, rows of a block, blocks, columns of a block]."""
    rows, columns = block
    return matrix.view(matrix.shape[0] // rows, rows, matrix.shape[1] // columns, columns)


def tiles(
    x: torch.Tensor, block: Block, block_amaxes: Mapping[Block, torch.Tensor] | None = None
) -> Iterator[Tile]:
    """Yield the tiles of a matrix; each is valid until the next one is requested.

    Args:
        x: the matrix.
        block: rows and columns that must not be split: powers of two, at most 128.
        block_amaxes: block size to the amaxes of all blocks of the matrix, to use instead of its
            own.
    """
    for rows, columns in tile_spans(x.shape[0], x.shape[1], x.device, block[0]):
        yield Tile(x, rows, columns, block, block_amaxes)


def own_transpose(matrix: torch.Tensor) -> torch.Tensor:
    """Return the transpose of a matrix as a contiguous copy in new memory."""
    return matrix.t().clone(memory_format=torch.contiguous_format)


def tile_spans(
    rows: int, columns: int, device: torch.device, block_rows: int = 1
) -> Iterator[tuple[slice, slice]]:
    """Yield the rows and the columns of each tile of a matrix, as slices."""
    if device.type == "cpu":
        elements = CPU_ELEMENTS * min(torch.get_num_threads(), CPU_THREADS)
    else:
        elements = DEVICE_ELEMENTS
    step = max(HEIGHT, block_rows)
    width = max(TILE_WIDTH, _floor(elements // max(rows, step), TILE_WIDTH))
    height = max(step, _floor(elements // min(width, max(columns, 1)), step))
    for top in range(0, rows, height):
        for left in range(0, columns, width):
            yield (
                slice(top, min(top + height, rows)),
                slice(left, min(left + width, columns)),
            )


def _whole(length: int, block: int) -> int:
    return -(-length // block) * block


def _floor(length: int, block: int) -> int:
    return length // block * block


def _block_amax(magnitudes: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """Return each block's largest magnitude, as integer bits, in a matrix of whole blocks."""
    rows, columns = block
    peaks = magnitudes
    if rows > 1:
        peaks = peaks.view(peaks.shape[0] // rows, rows, peaks.shape[1]).amax(1)
    if columns > 1:
        # Along a row, torch reduces fp32 faster than int32, unless the row of a block is short.
        fast = peaks.element_size() == 4 and columns >= _VECTORS
        peaks = peaks.view(torch.float32) if fast else peaks
        peaks = peaks.view(peaks.shape[0], peaks.shape[1] // columns, columns).amax(2)
    return peaks.view(magnitudes.dtype)
