"""Compute the sums of `lin8-128` with numpy and torch, on the host and on any device."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import gcd, prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pytest_precision._torch.dispatch import int8_products
from pytest_precision.engine.observation import Chunk, Place
from pytest_precision.trace.lin8_definition import BLOCK_BYTES, BOTH_SUMS
from pytest_precision.trace.lin8_keys import HOST_DEVICE, block_factors, lane_factors, small_keys

AT_ONCE = 1 << 22
"""Bytes that are multiplied at once: their sums and copies then stay in a processor's cache."""

SHORT_RUN = 16 * BLOCK_BYTES
"""Bytes of a run up to which it is copied beside others, so that one product serves all."""

MOST_PERIODS = 64
"""Groups of rows that are multiplied by themselves; more are copied to where they lie."""


class DigestedPart(NamedTuple):
    """A tensor that holds a part of a logical tensor.

    Attributes:
        tensor: the part, of any dtype, on any device.
        shape: of the logical tensor.
        place: which of its elements the part holds, in row-major order.
    """

    tensor: Tensor
    shape: tuple[int, ...]
    place: Place


class ShortRun(NamedTuple):
    """Bytes of a part that lie in few blocks, one after the other.

    Attributes:
        number: of the part.
        block: number of the first block.
        place: of the first byte in it.
        end: place behind the last byte, counted from the begin of the first block.
        blocks: their number.
        content: the bytes.
    """

    number: int
    block: int
    place: int
    end: int
    blocks: int
    content: Tensor


ByteAxis = tuple[int, int, int]
"""Of one axis, the extent of the whole, and offset and size of a block in it."""


class ByteSums:
    """Adds up the two sums of several parts. Subclasses say how, for bytes that lie in a row.

    Args:
        device: on which their bytes lie.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._waiting: list[ShortRun] = []
        self._waiting_bytes = 0

    def take(self, number: int, content: Tensor, part: DigestedPart) -> None:
        """Add the bytes of a part, which lie as its place says, to the sums of this number."""
        if not content.numel():
            return
        if isinstance(part.place, Chunk) and part.place.sizes == part.shape:
            self._take_run(number, content, 0)
            return
        size = content.numel() // part.tensor.numel()
        if isinstance(part.place, Chunk):
            axes = merged_axes(part.shape, part.place.offsets, part.place.sizes)
        else:
            axes = [(prod(part.shape), part.place.start, part.tensor.numel())]
        extent, offset, length = axes.pop()
        axes.append((extent * size, offset * size, length * size))
        self._take_block(number, content, axes, 0)

    def finished(self) -> npt.NDArray[np.int64]:
        """Return the two sums of each part, parts x 2, modulo 2^64."""
        raise NotImplementedError

    def _multiply(self, runs: Sequence[ShortRun], owners: list[int], blocks: list[int]) -> None:
        """Add the bytes of short runs, copied to blocks of their own, in one product.

        Args:
            runs: at least one.
            owners: of each of their blocks, the number of the part.
            blocks: of each of their blocks, its number in the part's tensor.
        """
        raise NotImplementedError

    def _add(self, number: int, products: Tensor, blocks: slice, last: int) -> None:
        """Add rows of products with small keys, of these blocks, up to number `last`."""
        raise NotImplementedError

    def _take_run(self, number: int, content: Tensor, start: int) -> None:
        """Add bytes that lie one after the other from byte `start` on."""
        size = content.numel()
        if size <= SHORT_RUN:
            self._take_short(number, content, start)
            return
        head = -start % BLOCK_BYTES
        whole = (size - head) // BLOCK_BYTES * BLOCK_BYTES
        self._take_short(number, content[:head], start)
        self._take_blocks(number, content[head : head + whole], (start + head) // BLOCK_BYTES)
        self._take_short(number, content[head + whole :], start + head + whole)

    def _take_short(self, number: int, content: Tensor, start: int) -> None:
        """Let a short run wait for those of others, so that one product serves all."""
        if content.numel():
            block, place = divmod(start, BLOCK_BYTES)
            end = place + content.numel()
            blocks = -(-end // BLOCK_BYTES)
            self._waiting.append(ShortRun(number, block, place, end, blocks, content))
            self._waiting_bytes += blocks * BLOCK_BYTES
            if self._waiting_bytes >= AT_ONCE:
                self._multiply_waiting()

    def _multiply_waiting(self) -> None:
        runs, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if runs:
            owners = [run.number for run in runs for _ in range(run.blocks)]
            blocks = [run.block + after for run in runs for after in range(run.blocks)]
            self._multiply(runs, owners, blocks)

    def _take_block(self, number: int, content: Tensor, axes: list[ByteAxis], start: int) -> None:
        """Add a block of bytes, which lies from byte `start` on as its axes say."""
        (_, offset, length), *inner = axes
        stride = prod(extent for extent, _, _ in inner)
        start += offset * stride
        if not inner:
            self._take_run(number, content, start)
        elif len(inner) == 1:
            _, inner_offset, width = inner[0]
            self._take_rows(number, content.view(length, width), start + inner_offset, stride)
        else:
            for index, rows in enumerate(content.view(length, -1)):
                self._take_block(number, rows, inner, start + index * stride)

    def _take_rows(self, number: int, rows: Tensor, start: int, stride: int) -> None:
        """Add rows of bytes, the first of which begins at `start`, the next `stride` after it."""
        width = rows.shape[1]
        period = BLOCK_BYTES // gcd(
            stride, BLOCK_BYTES
        )  # rows after which the place in a block repeats
        if width > SHORT_RUN or len(rows) == 1:
            for index, row in enumerate(rows):
                self._take_run(number, row, start + index * stride)
        elif period <= MOST_PERIODS and period < len(rows):
            for index in range(period):
                alike = rows[index::period]
                self._take_alike(number, alike, start + index * stride, stride * period)
        else:
            group_size = max(1, AT_ONCE // stride)
            for first in range(0, len(rows), group_size):
                group = rows[first : first + group_size]
                wide = torch.nn.functional.pad(group, (0, stride - width)).view(-1)
                self._take_run(number, wide, start + first * stride)

    def _take_alike(self, number: int, rows: Tensor, start: int, stride: int) -> None:
        """Add rows that begin at one place of their blocks, a whole number of blocks apart."""
        first, place = divmod(start, BLOCK_BYTES)
        step, at = stride // BLOCK_BYTES, 0
        while at < rows.shape[1]:
            pieces = rows[:, at : at + BLOCK_BYTES - place]
            keys = small_keys(self._device)[place : place + pieces.shape[1]]
            last = first + (len(rows) - 1) * step
            products = int8_products(pieces, keys)
            self._add(number, products, slice(first, last + 1, step), last)
            at, place, first = at + pieces.shape[1], 0, first + 1

    def _take_blocks(self, number: int, content: Tensor, first: int) -> None:
        """Add whole blocks, from number `first` on."""
        keys = small_keys(self._device)
        for rows in torch.split(content.view(-1, BLOCK_BYTES), AT_ONCE // BLOCK_BYTES):
            last = first + len(rows) - 1
            self._add(number, int8_products(rows, keys), slice(first, last + 1), last)
            first = last + 1


class HostSums(ByteSums):
    """Adds up sums in CPU memory.

    Args:
        parts: their number.
    """

    def __init__(self, parts: int) -> None:
        super().__init__(HOST_DEVICE)
        self._totals = np.zeros((parts, 2), np.int64)

    def finished(self) -> npt.NDArray[np.int64]:
        """Return the two sums of each part."""
        self._multiply_waiting()
        return self._totals

    def _multiply(self, runs: Sequence[ShortRun], owners: list[int], blocks: list[int]) -> None:
        # Not by torch.cat: its views of zeros between the runs take longer than the runs.
        width = max(BLOCK_BYTES if run.blocks > 1 else run.end for run in runs)
        rows = torch.zeros(len(blocks), width, dtype=torch.int8)
        begin = rows.data_ptr()
        for run in runs:
            ctypes.memmove(begin + run.place, run.content.data_ptr(), run.end - run.place)
            begin += run.blocks * width
        products = int8_products(rows, small_keys(self._device)[:width])
        np.add.at(self._totals, owners, self._folded(products, blocks, max(blocks)))

    def _add(self, number: int, products: Tensor, blocks: slice, last: int) -> None:
        self._totals[number] += self._folded(products, blocks, last).sum(0)

    def _folded(
        self, products: Tensor, blocks: slice | list[int], last: int
    ) -> npt.NDArray[np.int64]:
        """Return two sums for each row of products."""
        factors = block_factors(self._device, last + 1).numpy()[blocks]
        in_blocks = products.numpy().astype(np.int64) @ lane_factors(self._device).numpy()
        folded: npt.NDArray[np.int64] = in_blocks * factors
        return folded


class DeviceSums(ByteSums):
    """Adds up sums on a device, in few calls and without waiting for it.

    Args:
        parts: their number.
        device: on which their bytes lie.
    """

    def __init__(self, parts: int, device: torch.device) -> None:
        super().__init__(device)
        self._totals = torch.zeros(parts, 2, dtype=torch.int64, device=device)
        self._zeros = torch.zeros(BLOCK_BYTES, dtype=torch.int8, device=device)

    def finished(self) -> npt.NDArray[np.int64]:
        """Return the two sums of each part, waiting for the device."""
        self._multiply_waiting()
        sums: npt.NDArray[np.int64] = self._totals.cpu().numpy()
        return sums

    def _multiply(self, runs: Sequence[ShortRun], owners: list[int], blocks: list[int]) -> None:
        copied = (
            bytes_in_block
            for run in runs
            for bytes_in_block in (
                self._zeros[: run.place],
                run.content,
                self._zeros[: run.blocks * BLOCK_BYTES - run.end],
            )
        )
        rows = torch.cat([*copied]).view(-1, BLOCK_BYTES)
        products = int8_products(rows, small_keys(self._device))
        owner_numbers, block_numbers = torch.tensor([owners, blocks], device=self._device)
        folded = self._folded(products, block_numbers, max(blocks))
        self._totals.index_add_(0, owner_numbers, folded)

    def _add(self, number: int, products: Tensor, blocks: slice, last: int) -> None:
        self._totals[number] += self._folded(products, blocks, last).sum(0)

    def _folded(self, products: Tensor, blocks: slice | Tensor, last: int) -> Tensor:
        """Return two sums for each row of products."""
        wide = products.long()
        lanes = lane_factors(self._device)
        in_blocks = torch.stack([(wide * lanes[:, half]).sum(1) for half in BOTH_SUMS], 1)
        return in_blocks * block_factors(self._device, last + 1)[blocks]


def merged_axes(
    shape: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]
) -> list[ByteAxis]:
    """Return as few axes as say where a chunk lies in a tensor, at least one."""
    axes = [(1, 0, 1)]
    for extent, offset, size in zip(shape, offsets, sizes, strict=True):
        before, first, length = axes[-1]
        if size == extent:
            axes[-1] = before * extent, first * extent, length * extent
        elif length == 1:
            axes[-1] = before * extent, first * extent + offset, size
        else:
            axes.append((extent, offset, size))
    return axes
