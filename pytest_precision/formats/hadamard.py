"""The random Hadamard transform of NVFP4: 16 rows at a time, with fixed signs.

y_j = 1/4 sum_i s_i x_i (-1)**popcount(i & j), an orthonormal matrix, over blocks of 16 rows. The
kernels apply it to the transposed input along its rows, which is the same thing.
"""

from __future__ import annotations

from functools import cache

import torch

from pytest_precision.formats.tiles import scratch, spans

SIDE = 16
SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)
"""s_i: the bits of the mask 0xD7E8, lowest first, where a set bit is a minus."""

_FP32_LOST = (1 << 29) - 1
"""The bits of an fp64 mantissa that fp32 has no room for."""


def transformed(x: torch.Tensor) -> torch.Tensor:
    """The transform of a bf16 matrix along its rows, in bf16.

    The sum is taken in fp64, where it is exact unless the exponents of 16 elements spread beyond
    2**40, and is rounded once. The tensor cores accumulate in fp32 in an order that is not
    documented; for normal data the rounded results are the same.

    Args:
        x: bf16 [rows, columns]; rows a multiple of 16.
    """
    matrix = _matrix(x.device)
    out = torch.empty(x.shape, dtype=torch.bfloat16, device=x.device)
    for rows, columns in spans(x.shape[0], x.shape[1], x.device):
        part = x[rows, columns]
        shape = tuple(part.shape)
        wide = scratch("wide", shape, x, torch.float64).copy_(part)
        sums = scratch("sums", shape, x, torch.float64)
        torch.matmul(matrix, wide.view(-1, SIDE, shape[1]), out=sums.view(-1, SIDE, shape[1]))
        _round_to_odd_(sums.view(torch.int64), wide.view(torch.int64))
        out[rows, columns].copy_(scratch("narrow", shape, x).copy_(sums))
    return out


@cache
def _matrix(device: torch.device) -> torch.Tensor:
    """The transform of 16 elements as a matrix, fp64."""
    matrix = torch.ones((1, 1), dtype=torch.float64, device=device)
    while len(matrix) < SIDE:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix * torch.tensor(SIGNS, dtype=torch.float64, device=device) / 4


def _round_to_odd_(bits: torch.Tensor, spare: torch.Tensor) -> None:
    """Cut fp64 numbers to the mantissa of fp32, with its last bit set where any bit was lost.

    Rounding the result to bf16 is rounding the fp64 number to bf16. Rounding to nearest first would
    make ties of numbers that are almost half-way.
    """
    torch.bitwise_and(bits, _FP32_LOST, out=spare)
    bits.bitwise_or_(spare.add_(_FP32_LOST)).bitwise_and_(~_FP32_LOST)
