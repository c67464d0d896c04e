"""Walk over a matrix in tiles that fit the cache, in fp32 and with scratch that is reused.

Quantizing takes 8 to 30 passes over fp32 copies of the input. On whole matrices each pass faults
in fresh pages and runs at the speed of memory; a tile of 2**18 elements stays in the cache.

With several threads each of the many small passes waits for all of them, so on busy cores one
thread (`torch.set_num_threads(1)`, as in the ranks) is much faster than two.

torch.compile of the plain arithmetic gives the same bits, but is slower than tiles for most
formats. Where it is faster, it has paid for itself after 60 matrices of 4096 x 4096 or more of one
shape, not counting the 10 s of its first use (`ci/bench/formats.py --compile`): so nothing here is
compiled.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from math import prod
from typing import NamedTuple

import torch

CPU_ELEMENTS = 1 << 18
"""Elements of a tile for each thread of torch, on a CPU."""

CPU_THREADS = 4
"""Threads that enlarge a tile; this bounds the scratch that a thread keeps (4 MiB a buffer)."""

DEVICE_ELEMENTS = 1 << 26
"""Elements of a tile on other devices, whose allocator keeps the scratch by itself."""

HEIGHT = 64
WIDTH = 4096
"""Rows and columns of a tile where the matrix has so many, measured on matrices of 4096 x 4096.

Long pieces of a row are faster to read, and so many rows make the pieces of a transposed result
long enough to write. `WIDTH` is a multiple of every block.
"""

_VECTORS = 32

Block = tuple[int, int]
"""Rows and columns that share a scale."""


class Bits(NamedTuple):
    """The bits of a floating-point dtype; those of magnitudes are ordered as the magnitudes are.

    Attributes:
        dtype: the integers that hold them.
        magnitude: all bits but the sign.
        infinity: the bits of infinity; those of NaN are above.
    """

    dtype: torch.dtype
    magnitude: int
    infinity: int


BITS = {
    torch.float32: Bits(torch.int32, 0x7FFFFFFF, 0x7F800000),
    torch.bfloat16: Bits(torch.int16, 0x7FFF, 0x7F80),
    torch.float16: Bits(torch.int16, 0x7FFF, 0x7C00),
}


class _Kept(threading.local):
    def __init__(self) -> None:
        self.buffers: dict[tuple[str, torch.dtype], torch.Tensor] = {}


_kept = _Kept()


def scratch(
    name: str, shape: tuple[int, ...], like: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """An uninitialised tensor on the device of `like`, valid until the next call with this name."""
    if like.device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=like.device)
    needed = prod(shape)
    buffer = _kept.buffers.get((name, dtype))
    if buffer is None or buffer.numel() < needed:
        # Made outside inference mode, so that later calls outside it may write to it.
        with torch.inference_mode(False):
            buffer = torch.empty(needed, dtype=dtype, device="cpu")
        _kept.buffers[name, dtype] = buffer
    return buffer[:needed].view(shape)


class Tile:
    """A part of a matrix, to be seen in whole blocks: what is missing at the edges counts as 0.

    Attributes:
        rows: the rows of the matrix that it holds.
        columns: the columns of the matrix that it holds.
        source: the part of the matrix.
        has_nan: whether an amax came across a NaN.
    """

    def __init__(
        self,
        x: torch.Tensor,
        rows: slice,
        columns: slice,
        block: Block,
        known: Mapping[Block, torch.Tensor] | None = None,
    ) -> None:
        self.rows = rows
        self.columns = columns
        self.source = x[rows, columns]
        self.has_nan = False
        self._shape = tuple(map(_whole, self.source.shape, block))
        self._magnitudes: torch.Tensor | None = None
        self._known = known

    def amax(self, block: Block, *, keep_nan: bool = False) -> torch.Tensor:
        """Largest magnitude of each block, fp32 [blocks of rows, blocks of columns].

        Where amaxes were given, those; the tile is still searched for NaN.

        NaN is ignored unless it is to be kept: so does the `fmaxf` of the kernels, which starts at
        0, whereas torch's amax propagates it. Bits are compared, not numbers: integers, and those
        of 16-bit inputs all the more, are the fastest to reduce.
        """
        bits = BITS[self.source.dtype]
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
        if self._known is not None:
            given = self.of_blocks(self._known[block], block)
            amaxes[: given.shape[0], : given.shape[1]] = given
        return amaxes

    def of_blocks(self, matrix: torch.Tensor, block: Block) -> torch.Tensor:
        """The part of a matrix with one element a block that belongs to this tile."""
        rows, columns = block
        return matrix[
            self.rows.start // rows : -(-self.rows.stop // rows),
            self.columns.start // columns : -(-self.columns.stop // columns),
        ]

    def scaled(self, multiplier: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
        """Each block in fp32, multiplied by its fp32 multiplier, in scratch."""
        scaled = self._scratch("scaled", torch.float32)
        self.cut(scaled).copy_(self.source)
        split_blocks(scaled, block).mul_(multiplier[:, None, :, None])
        return scaled

    def cut(self, padded: torch.Tensor) -> torch.Tensor:
        """The part of whole blocks that belongs to the matrix."""
        return padded[: self.source.shape[0], : self.source.shape[1]]

    def _scratch(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        made = scratch(name, self._shape, self.source, dtype)
        return made.zero_() if self.source.shape != self._shape else made


def split_blocks(matrix: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """View as [blocks, rows of a block, blocks, columns of a block]."""
    rows, columns = block
    return matrix.view(matrix.shape[0] // rows, rows, matrix.shape[1] // columns, columns)


def tiles(
    x: torch.Tensor, block: Block, known: Mapping[Block, torch.Tensor] | None = None
) -> Iterator[Tile]:
    """The tiles of a matrix, each valid until the next is asked for.

    Args:
        x: the matrix.
        block: rows and columns that must not be split; at most 128, powers of two.
        known: amaxes of all blocks of the matrix, by size of block, to be taken for its own.
    """
    for rows, columns in spans(x.shape[0], x.shape[1], x.device, block[0]):
        yield Tile(x, rows, columns, block, known)


def spans(
    rows: int, columns: int, device: torch.device, block_rows: int = 1
) -> Iterator[tuple[slice, slice]]:
    """Where the tiles of a matrix lie."""
    if device.type == "cpu":
        elements = CPU_ELEMENTS * min(torch.get_num_threads(), CPU_THREADS)
    else:
        elements = DEVICE_ELEMENTS
    step = max(HEIGHT, block_rows)
    width = max(WIDTH, _floor(elements // max(rows, step), WIDTH))
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
    """The largest bits of each block of a matrix of whole blocks."""
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
