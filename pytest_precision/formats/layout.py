"""Convert scales to the kernels' memory layout: padded, transposed, or swizzled for GEMMs."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from pytest_precision.errors import expected_but_got

SWIZZLE = (128, 4)
"""Rows and columns of the tiles in which cuBLAS reads scales of 1 byte."""


def padded_scale(scale: torch.Tensor, multiples: tuple[int, int] = SWIZZLE) -> torch.Tensor:
    """Pad a scale matrix with zeros; Transformer Engine's kernels leave the padding uninitialised.

    A matrix that needs no padding may be returned itself.

    MXFP8 pads the rowwise scale to multiples of (128, 4) and the columnwise one to multiples of
    (4, 128); NVFP4 pads both to multiples of (128, 4).

    Args:
        scale: [rows, columns], the scale of an `Operand`.
        multiples: the numbers that rows and columns are padded to multiples of.
    """
    rows, columns = (
        -(-length // multiple) * multiple
        for length, multiple in zip(_matrix(scale).shape, multiples, strict=True)
    )
    if (rows, columns) == scale.shape:
        return scale.contiguous()
    padded = scale.new_zeros((rows, columns))
    padded[: scale.shape[0], : scale.shape[1]] = scale
    return padded


def gemm_ready_scale(scale: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """Return the fp32 scale of a blockwise fp8 operand as Transformer Engine's kernels store it.

    A scale that needs no change may be returned itself.

    Args:
        scale: fp32, the scale of an `Operand`.
        block: the `block` of its `Storage`. Scales of 1 x 128 blocks are stored transposed; the
            columns of both kinds are padded to a multiple of 4.
    """
    return padded_scale(_matrix(scale).t() if block[0] == 1 else scale, (1, 4))


def swizzled_scale(scale: torch.Tensor, *, turned: bool = False) -> torch.Tensor:
    """Return a scale matrix in the order in which cuBLAS reads it, padded with zeros; uint8, flat.

    Entry (i, j) of a matrix of C columns goes to the place
    ((i // 128) ceil(C / 4) + j // 4) 512 + (i % 32) 16 + (i % 128) // 32 * 4 + j % 4.

    Args:
        scale: uint8 [rows, columns] with blocks along a row.
        turned: whether the blocks of `scale` lie along a column, as those of the columnwise scale
            of MXFP8 do: it is its transpose that is stored.
    """
    rows, columns = _matrix(scale).shape[::-1] if turned else _matrix(scale).shape
    places = torch.from_numpy(_places(rows, columns, turned)).to(scale.device)
    return scale.new_zeros(_bytes(rows, columns)).scatter_(0, places, scale.reshape(-1))


def unswizzled_scale(
    swizzled: torch.Tensor, shape: tuple[int, int], *, turned: bool = False
) -> torch.Tensor:
    """Return the scale matrix, of a given shape, that `swizzled_scale` has turned into these bytes.

    Raises:
        ValueError: the number of bytes is not that of a padded matrix of this shape.
    """
    rows, columns = shape[::-1] if turned else shape
    if swizzled.numel() != _bytes(rows, columns):
        raise ValueError(
            expected_but_got(
                f"{_bytes(rows, columns)} bytes for a scale of shape {shape}",
                f"swizzled.numel()={swizzled.numel()} (int)",
                "give the shape without padding",
            )
        )
    places = torch.from_numpy(_places(rows, columns, turned)).to(swizzled.device)
    return swizzled.reshape(-1).index_select(0, places).view(shape)


def _bytes(rows: int, columns: int) -> int:
    """Return the number of bytes of a swizzled matrix of this shape."""
    return -(-rows // SWIZZLE[0]) * -(-columns // SWIZZLE[1]) * SWIZZLE[0] * SWIZZLE[1]


@lru_cache(maxsize=16)
def _places(rows: int, columns: int, turned: bool) -> np.ndarray:
    """Return the swizzled position of each entry of a scale matrix, int64 [rows * columns].

    They are in the order of the matrix, or of its transpose. No tensor is kept: one that is made
    in inference mode, or is a fake one, would be of no use outside of it.
    """
    i, j = np.ogrid[:rows, :columns]
    tile = i // 128 * -(-columns // 4) + j // 4
    places = tile * 512 + i % 32 * 16 + i % 128 // 32 * 4 + j % 4
    return np.ravel(places.T if turned else places)


def _matrix(scale: torch.Tensor) -> torch.Tensor:
    if scale.dim() != 2:
        raise ValueError(
            expected_but_got(
                "a matrix of scales",
                f"scale.shape={tuple(scale.shape)} (Size)",
                "use it unchanged if it is the one scale of a tensor",
            )
        )
    return scale
