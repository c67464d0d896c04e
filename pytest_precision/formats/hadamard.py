"""The random Hadamard transform of NVFP4, over blocks of 16 rows, with fixed signs.

y_j = 1/4 sum_i s_i x_i (-1)**popcount(i & j): the matrix is orthonormal. The kernels apply the
transform along the rows of the transposed input, which gives the same numbers.
"""

from __future__ import annotations

from functools import cache

import torch

from pytest_precision.formats.tiles import empty_scratch, tile_spans

HADAMARD_SIDE = 16
SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)
"""s_i: the bits of the mask 0xD7E8, lowest first; a set bit means -1."""

_FP32_LOST = (1 << 29) - 1
"""The bits of an fp64 mantissa that do not fit in fp32."""


def transformed(x: torch.Tensor) -> torch.Tensor:
    """Apply the random Hadamard transform to each block of 16 rows of a bf16 matrix.

    The result is bf16. The sum is computed in fp64 and rounded once. In fp64 it is exact unless
    magnitudes of the 16 elements differ by more than a factor of 2**40. The tensor cores accumulate
    in fp32 in an order that is not documented; for normal data the rounded results are the same.

    Args:
        x: bf16 [rows, columns]; the number of rows is a multiple of 16.
    """
    matrix = _matrix(x.device)
    out = torch.empty(x.shape, dtype=torch.bfloat16, device=x.device)
    for rows, columns in tile_spans(x.shape[0], x.shape[1], x.device):
        part = x[rows, columns]
        shape = tuple(part.shape)
        wide = empty_scratch("wide", shape, x, torch.float64).copy_(part)
        sums = empty_scratch("sums", shape, x, torch.float64)
        torch.matmul(
            matrix,
            wide.view(-1, HADAMARD_SIDE, shape[1]),
            out=sums.view(-1, HADAMARD_SIDE, shape[1]),
        )
        _round_to_odd_(sums.view(torch.int64), wide.view(torch.int64))
        out[rows, columns].copy_(empty_scratch("narrow", shape, x).copy_(sums))
    return out


@cache
def _matrix(device: torch.device) -> torch.Tensor:
    """Return the Hadamard matrix with random signs, fp64 [16, 16]."""
    matrix = torch.ones((1, 1), dtype=torch.float64, device=device)
    while len(matrix) < HADAMARD_SIDE:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix * torch.tensor(SIGNS, dtype=torch.float64, device=device) / 4


def _round_to_odd_(bits: torch.Tensor, spare: torch.Tensor) -> None:
    """Truncate fp64 numbers to the mantissa of fp32, and set its last bit if any bit was lost.

    Rounding the result to bf16 equals rounding the fp64 number to bf16. If the fp64 number were
    rounded to nearest first, a number that is almost half-way would become a tie.
    """
    torch.bitwise_and(bits, _FP32_LOST, out=spare)
    bits.bitwise_or_(spare.add_(_FP32_LOST)).bitwise_and_(~_FP32_LOST)
