"""Compute the sums of `lin8-128` on a GPU, by a Triton kernel that reads a whole list of tensors.

Each program of the kernel takes a tile: some blocks of a run, which is what lies of a part in one
row. It multiplies their bytes by small keys on the matrix units, and writes two sums; those of a
part are added afterwards. Nothing is copied, whatever byte a part begins at. There are two
launches: one for whole tiles, which reads 16 bytes at once and tests none, and one for the rest.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from functools import cache
from textwrap import shorten
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl
from torch import Tensor

from pytest_precision.engine.observation import Span
from pytest_precision.trace.lin8_definition import (
    BLOCK_BYTES,
    BLOCKS_FROM,
    KEYS_OF_BYTE,
)
from pytest_precision.trace.lin8_keys import lane_factors, small_keys
from pytest_precision.trace.lin8_sums import ByteSums, DeviceSums, DigestedPart, HostSums

TILE_BLOCKS = 64
"""Blocks of a tile: the rows of its product."""

TILE_DEPTH = 128
"""Bytes of each block that are multiplied at once."""

TILE_BYTES = TILE_BLOCKS * BLOCK_BYTES

READ_BYTES = 16
"""Bytes that one instruction reads at most; whole tiles begin at multiples of it."""

LEAST_CAPABILITY = (8, 0)
"""Compute capability from which matrix units multiply int8."""


class _Run(NamedTuple):
    """Bytes that lie in one row, in memory and in the logical tensor.

    Attributes:
        content: flat, int8.
        start: byte of the logical tensor at which they begin.
        number: of their part.
    """

    content: Tensor
    start: int
    number: int

    @property
    def tiles(self) -> int:
        """Return the number of tiles that have a byte of it."""
        end = self.start + len(self.content)
        blocks = -(-end // BLOCK_BYTES) - self.start // BLOCK_BYTES
        return -(-blocks // TILE_BLOCKS)


class TritonSums(DeviceSums):
    """Adds up sums on a GPU, all runs by two launches, and without waiting for it.

    Args:
        parts: their number.
        device: on which their bytes lie.
    """

    def __init__(self, parts: int, device: torch.device) -> None:
        super().__init__(parts, device)
        self._runs: dict[bool, list[_Run]] = {True: [], False: []}  # of whole tiles, and others

    def finished(self) -> npt.NDArray[np.int64]:
        """Return the two sums of each part, waiting for the device."""
        for whole, runs in self._runs.items():
            if runs:
                self._launch(runs, whole=whole)
        return super().finished()

    def _take_run(self, number: int, content: Tensor, start: int) -> None:
        head = -start % BLOCK_BYTES
        end = head + max(0, content.numel() - head) // TILE_BYTES * TILE_BYTES
        if (content.data_ptr() + head) % READ_BYTES:
            head = end = 0
        for first, last, whole in ((0, head, False), (head, end, True), (end, None, False)):
            run = _Run(content[first:last], start + first, number)
            if len(run.content):
                self._runs[whole].append(run)

    def _launch(self, runs: list[_Run], *, whole: bool) -> None:
        numbers = [
            (run.content.data_ptr(), len(run.content), run.start, run.number, run.tiles)
            for run in runs
        ]
        table = torch.tensor(numbers, device=self._device)
        tiles = sum(run.tiles for run in runs)
        run_of, first_of = _tiles_of_runs(table[:, -1], tiles)
        sums = torch.empty(tiles, 2, dtype=torch.int64, device=self._device)
        # A launch goes to the current device, not to that of its arguments.
        on_gpu = self._device.type == "cuda"
        with torch.cuda.device(self._device) if on_gpu else nullcontext():
            _sum_tiles[(tiles,)](
                table,
                run_of,
                first_of,
                _keys_by_lane(self._device),
                lane_factors(self._device),
                sums,
                whole=whole,
                **KERNEL_CONSTANTS,
            )
        self._totals.index_add_(0, table[:, -2][run_of], sums)


def _tiles_of_runs(tiles_of_run: Tensor, tiles: int) -> tuple[Tensor, Tensor]:
    """Return the run of each tile, and its first block, counted from the run's first."""
    runs = torch.arange(len(tiles_of_run), device=tiles_of_run.device)
    run_of = torch.repeat_interleave(runs, tiles_of_run, output_size=tiles)
    before = tiles_of_run.cumsum(0) - tiles_of_run
    return run_of, (torch.arange(tiles, device=run_of.device) - before[run_of]) * TILE_BLOCKS


@cache
def _keys_by_lane(device: torch.device) -> Tensor:
    """Return the small keys, those of one lane in a row, so that many are read at once."""
    return small_keys(device).t().contiguous()


@triton.jit
def _splitmix(counters):  # type: ignore[no-untyped-def]
    mixed = (counters + 1) * -7046029254386353131
    mixed = (mixed ^ ((mixed >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    mixed = (mixed ^ ((mixed >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return mixed ^ ((mixed >> 31) & 0x1FFFFFFFF)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _sum_tiles(  # type: ignore[no-untyped-def]
    table,
    run_of,
    first_of,
    keys,
    factors,
    sums,
    whole: tl.constexpr,
    columns: tl.constexpr,
    block_bytes: tl.constexpr,
    factors_from: tl.constexpr,
    lane_count: tl.constexpr,
    tile_blocks: tl.constexpr,
    depth: tl.constexpr,
    aligned: tl.constexpr,
):
    """Write the two sums of one tile of the runs in a table, whose columns `_launch` has."""
    tile = tl.program_id(0)
    run = table + tl.load(run_of + tile) * columns
    memory = tl.load(run).to(tl.pointer_type(tl.int8))
    size = tl.load(run + 1)
    start = tl.load(run + 2)
    first = tl.load(first_of + tile)
    in_tile = tl.arange(0, tile_blocks).to(tl.int64)
    numbers = start // block_bytes + first + in_tile
    lanes = tl.arange(0, lane_count)
    products = tl.zeros((tile_blocks, lane_count), dtype=tl.int32)
    if whole:
        memory = tl.multiple_of(memory, aligned)
    for place in range(0, block_bytes, depth):
        places = place + tl.arange(0, depth)
        if whole:
            content = tl.load(memory + (first + in_tile[:, None]) * block_bytes + places[None, :])
        else:
            at = numbers[:, None] * block_bytes + places[None, :] - start
            content = tl.load(memory + at, mask=(at >= 0) & (at < size), other=0)
        small = tl.load(keys + lanes[:, None] * block_bytes + places[None, :])
        products = tl.dot(content, tl.trans(small), products, out_dtype=tl.int32)
    wide = products.to(tl.int64)
    for half in tl.static_range(2):
        in_blocks = tl.sum(wide * tl.load(factors + lanes * 2 + half)[None, :], 1)
        block_factors = _splitmix(factors_from + 2 * numbers + half) | 1
        tl.store(sums + tile * 2 + half, tl.sum(in_blocks * block_factors, 0))


KERNEL_CONSTANTS = {
    "columns": 5,
    "block_bytes": BLOCK_BYTES,
    "factors_from": BLOCKS_FROM,
    "lane_count": KEYS_OF_BYTE,
    "tile_blocks": TILE_BLOCKS,
    "depth": TILE_DEPTH,
    "aligned": READ_BYTES,
}
"""What the kernel is compiled for."""


@cache
def computes_the_definition(device: torch.device) -> bool:
    """Return whether the kernel compiles for a GPU, and computes there what the definition says.

    A container may lack the compiler that Triton calls, which a warning says, and a card the
    products of int8.
    """
    if torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        return False
    problem = _problem(device)
    if problem:
        text = f"torch computes the digests on {device}, which takes longer, since Triton {problem}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    return not problem


def _problem(device: torch.device) -> str:
    """Return how the kernel fails on bytes in whole tiles and outside of them; empty if not."""
    size = TILE_BYTES + BLOCK_BYTES + 99
    flat = (torch.arange(size, device=device) ** 2 % 251).to(torch.int8)
    start = BLOCK_BYTES - READ_BYTES
    end = start + size
    computed = []
    forms: list[tuple[ByteSums, Tensor]] = [
        (TritonSums(1, device), flat),
        (HostSums(1), flat.cpu()),
    ]
    try:
        for form, content in forms:
            form.take(0, content, DigestedPart(content, (end,), Span(start, end)))
            computed += form.finished().view(np.uint64).tolist()
    except Exception as error:  # of a compiler, which may raise anything
        return f"raises {type(error).__name__}: {shorten(str(error), 200)}"
    ours, expected = computed
    return "" if ours == expected else f"computes the sums {ours}, not {expected}"
