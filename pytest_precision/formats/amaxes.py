"""Amaxes apart from the cast, for ranks that hold parts of a matrix and reduce them in between."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from pytest_precision.errors import expected_but_got
from pytest_precision.formats.tiles import Block, tiles


def block_amaxes(
    x: torch.Tensor, blocks: Sequence[Block], *, keep_nan: bool = False
) -> torch.Tensor:
    """Largest magnitudes of the blocks of a matrix, NaN ignored unless it is to be kept.

    Args:
        x: the matrix.
        blocks: the sizes of block to find them for; blocks at the edges may be partial.
        keep_nan: the amax of a block with a NaN is NaN.

    Returns:
        fp32, flat: those of the first size row by row, then those of the next one.
    """
    found = x.new_zeros(sum(map(prod, _grids(x, blocks))), dtype=torch.float32)
    places = by_block(found, x, blocks)
    for tile in tiles(x, (max(rows for rows, _ in blocks), max(across for _, across in blocks))):
        for block, place in places.items():
            region = tile.of_blocks(place, block)
            region.copy_(tile.amax(block, keep_nan=keep_nan)[: region.shape[0], : region.shape[1]])
    return found


def by_block(
    amaxes: torch.Tensor, x: torch.Tensor, blocks: Sequence[Block]
) -> dict[Block, torch.Tensor]:
    """What `block_amaxes` gives as views [blocks of rows, blocks of columns], by size of block.

    Raises:
        TypeError: not fp32.
        ValueError: another number of amaxes than `x` has blocks.
    """
    grids = _grids(x, blocks)
    checked = checked_amaxes(amaxes, sum(map(prod, grids)), x)
    parts: tuple[torch.Tensor, ...] = torch.split(checked, [*map(prod, grids)])
    return {block: part.view(grid) for block, part, grid in zip(blocks, parts, grids, strict=True)}


def checked_amaxes(amaxes: torch.Tensor, number: int, x: torch.Tensor) -> torch.Tensor:
    """`amaxes`, if it is fp32 [number].

    Raises:
        TypeError: not fp32.
        ValueError: another number.
    """
    if amaxes.dtype is not torch.float32:
        raise TypeError(
            expected_but_got(
                "amaxes of dtype torch.float32",
                f"amaxes.dtype={amaxes.dtype} (dtype)",
                "reduce what `amaxes` of the format gives",
            )
        )
    if amaxes.shape != (number,):
        raise ValueError(
            expected_but_got(
                f"{number} amaxes for a matrix of shape {tuple(x.shape)}",
                f"amaxes.shape={tuple(amaxes.shape)} (Size)",
                "reduce what `amaxes` of the format gives",
            )
        )
    return amaxes


def _grids(x: torch.Tensor, blocks: Sequence[Block]) -> list[Block]:
    return [(-(-x.shape[0] // rows), -(-x.shape[1] // columns)) for rows, columns in blocks]
