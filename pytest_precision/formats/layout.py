"""Scales as the kernels store them: padded, transposed, or swizzled for the GEMM."""

from __future__ import annotations

import torch

from pytest_precision.errors import expected_but_got

SWIZZLE = (128, 4)
"""Rows and columns of the tiles in which cuBLAS reads scales of 1 byte."""


def padded_scale(scale: torch.Tensor, multiples: tuple[int, int] = SWIZZLE) -> torch.Tensor:
    """Pad a scale matrix with zeros; the kernels leave the padding uninitialised.

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
    padded = scale.new_zeros((rows, columns))
    padded[: scale.shape[0], : scale.shape[1]] = scale
    return padded


def gemm_ready_scale(scale: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """Return the fp32 scale of a blockwise fp8 operand as the kernels store it.

    Args:
        scale: fp32, the scale of an `Operand`.
        block: the `block` of its `Storage`. Scales of 1 x 128 blocks are stored transposed; the
            columns of both kinds are padded to a multiple of 4.
    """
    return padded_scale(_matrix(scale).t() if block[0] == 1 else scale, (1, 4))


def swizzled_scale(scale: torch.Tensor) -> torch.Tensor:
    """Return a scale matrix in the order in which cuBLAS reads it, padded with zeros; uint8, flat.

    Entry (i, j) of a matrix of C columns goes to the place
    ((i // 128) ceil(C / 4) + j // 4) 512 + (i % 32) 16 + (i % 128) // 32 * 4 + j % 4.

    Args:
        scale: uint8 [rows, columns] with blocks along a row. The columnwise scale of MXFP8 has
            blocks along a column: transpose it first.
    """
    padded = padded_scale(scale)
    split = padded.view(padded.shape[0] // 128, 4, 32, padded.shape[1] // 4, 4)
    return split.permute(0, 3, 2, 1, 4).flatten()


def unswizzled_scale(swizzled: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """Return the scale matrix of this shape that `swizzled_scale` was given.

    Raises:
        ValueError: the number of bytes is not that of a padded matrix of this shape.
    """
    rows, columns = -(-shape[0] // SWIZZLE[0]), -(-shape[1] // SWIZZLE[1])
    if swizzled.numel() != rows * columns * 512:
        raise ValueError(
            expected_but_got(
                f"{rows * columns * 512} bytes for a scale of shape {shape}",
                f"swizzled.numel()={swizzled.numel()} (int)",
                "give the shape without padding",
            )
        )
    split = swizzled.view(rows, columns, 32, 4, 4).permute(0, 3, 2, 1, 4)
    return split.reshape(rows * SWIZZLE[0], columns * SWIZZLE[1])[: shape[0], : shape[1]]


def _matrix(scale: torch.Tensor) -> torch.Tensor:
    if scale.dim() != 2:
        raise ValueError(
            expected_but_got(
                "a matrix of scales",
                f"scale.shape={tuple(scale.shape)} (Size)",
                "a format with one scale per tensor stores it as it is",
            )
        )
    return scale
