"""Compute amaxes separately from the cast, so that ranks with parts of a matrix can reduce them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from pytest_precision.errors import expected_but_got
from pytest_precision.formats.tiles import Block, tiles


def amaxes_of_blocks(
    x: torch.Tensor, blocks: Sequence[Block], *, keep_nan: bool = False
) -> torch.Tensor:
    """Compute the amax (largest magnitude) of each block of a matrix.

    Args:
        x: the matrix.
        blocks: the block sizes to compute amaxes for; blocks at the edges may be partial.
        keep_nan: whether the amax of a block with a NaN is NaN; otherwise NaNs are ignored.

    Returns:
        The amaxes, fp32, flat: row by row for the first block size, then for the next one.
    """
    amaxes = x.new_zeros(sum(map(prod, _grids(x, blocks))), dtype=torch.float32)
    places = by_block(amaxes, x, blocks)
    for tile in tiles(x, (max(rows for rows, _ in blocks), max(across for _, across in blocks))):
        for block, place in places.items():
            region = tile.of_blocks(place, block)
            region.copy_(tile.amax(block, keep_nan=keep_nan)[: region.shape[0], : region.shape[1]])
    return amaxes


def by_block(
    amaxes: torch.Tensor, x: torch.Tensor, blocks: Sequence[Block]
) -> dict[Block, torch.Tensor]:
    """View flat block amaxes as one matrix of amaxes for each block shape.

    Returns:
        Block size to a view of shape [blocks of rows, blocks of columns].

    Raises:
        TypeError: `amaxes` is not fp32.
        ValueError: the number of amaxes is not the number of blocks of `x`.
    """
    grids = _grids(x, blocks)
    checked_tensor = checked_amaxes(amaxes, sum(map(prod, grids)), x)
    parts: tuple[torch.Tensor, ...] = torch.split(checked_tensor, [*map(prod, grids)])
    return {block: part.view(grid) for block, part, grid in zip(blocks, parts, grids, strict=True)}


def checked_amaxes(amaxes: torch.Tensor, number: int, x: torch.Tensor) -> torch.Tensor:
    """Return `amaxes` if its dtype is fp32 and its shape is [number]; raise an error otherwise.

    Raises:
        TypeError: `amaxes` is not fp32.
        ValueError: `amaxes` has another shape.
    """
    if amaxes.dtype is not torch.float32:
        raise TypeError(
            expected_but_got(
                "amaxes of dtype torch.float32",
                f"amaxes.dtype={amaxes.dtype} (dtype)",
                "pass the result of the format's `amaxes`, reduced over the ranks",
            )
        )
    if amaxes.shape != (number,):
        raise ValueError(
            expected_but_got(
                f"{number} amaxes for a matrix of shape {tuple(x.shape)}",
                f"amaxes.shape={tuple(amaxes.shape)} (Size)",
                "pass the result of the format's `amaxes`, reduced over the ranks",
            )
        )
    return amaxes


def _grids(x: torch.Tensor, blocks: Sequence[Block]) -> list[Block]:
    return [(-(-x.shape[0] // rows), -(-x.shape[1] // columns)) for rows, columns in blocks]
