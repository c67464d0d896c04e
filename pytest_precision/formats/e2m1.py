"""The 4-bit floating-point element e2m1: codes 0 to 7 are 0, .5, 1, 1.5, 2, 3, 4, 6; bit 3 negates.

Its grid has step 1/2 below 2, step 1 below 4 and step 2 below 6, so the code of a value `a` on the
grid is the least of 2a, a + 2 and a/2 + 4. Since rounding is monotone, the code of any other value
is the least of the three after each was rounded; no element needs a comparison with the grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch

from pytest_precision.formats.elements import Coding
from pytest_precision.formats.tiles import empty_scratch

GRID = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes of codes 0 to 7."""

MAXIMUM = GRID[-1]
RANDOM_STEPS = 256
"""The random bits of stochastic rounding are integers below this number."""

# Adding 2**23 to an fp32 number below 2**23 rounds it to an integer, ties to even, and leaves that
# integer in the low bits of the sum.
_ROUND = float(1 << 23)
# (factor, offset) of 2a, a + 2 and a/2 + 4; each offset is even, so ties still go to even codes.
_LINES = ((2.0, 0.0), (1.0, 2.0), (0.5, 4.0))
_POWER_OF_TWO = 0x7F800000


def codes_(
    magnitude: torch.Tensor, least: torch.Tensor, other_tensor: torch.Tensor
) -> torch.Tensor:
    """Convert fp32 magnitudes to e2m1 codes 0 to 7, rounded to nearest even, saturating.

    Args:
        magnitude: |y|; it is overwritten. The code of NaN is undefined.
        least: scratch of the same shape, fp32; it receives the result.
        other_tensor: scratch of the same shape, fp32.

    Returns:
        An int32 view of `least` with the code in the low byte; the other bytes are undefined.
    """
    magnitude.clamp_(max=MAXIMUM)
    for target, (factor, offset) in zip((least, other_tensor, other_tensor), _LINES, strict=True):
        rounder = torch.tensor(_ROUND + offset, dtype=torch.float32, device="cpu")
        torch.add(rounder, magnitude, alpha=factor, out=target)
        if target is other_tensor:
            torch.minimum(least, other_tensor, out=least)
    return least.view(torch.int32)


def stochastic_codes_(
    magnitude: torch.Tensor, random: torch.Tensor, least: torch.Tensor, other_tensor: torch.Tensor
) -> torch.Tensor:
    """Convert fp32 magnitudes to e2m1 codes 0 to 7, rounded stochastically, saturating.

    A magnitude is rounded up with probability floor(256 f) / 256, where f is its position between
    its two neighbours on the grid. The formula is that of the hardware's instruction and of its
    software fallback: t = fma(r / 256, step(a), a) in fp32, then the largest grid value <= t.

    Args:
        magnitude: a = |y|; it is overwritten. The code of NaN is undefined.
        random: r, integers 0 to 255 in fp32, same shape; it is overwritten.
        least: scratch of the same shape, fp32; it receives the result.
        other_tensor: scratch of the same shape, fp32.

    Returns:
        An int32 view of `least`, as in `codes_`.
    """
    magnitude.clamp_(max=MAXIMUM)
    # The step of the grid is half the largest power of two <= max(a, 1). r * step is exact, so the
    # sum is rounded once, as in the fma.
    torch.clamp(magnitude, min=1.0, out=other_tensor)
    other_tensor.view(torch.int32).bitwise_and_(_POWER_OF_TWO)
    random.mul_(other_tensor)
    magnitude.add_(random, alpha=0.5 / RANDOM_STEPS).clamp_(max=MAXIMUM)
    for target, (factor, offset) in zip((least, other_tensor, other_tensor), _LINES, strict=True):
        torch.mul(magnitude, factor, out=target)
        target.floor_().add_(_ROUND + offset)
        if target is other_tensor:
            torch.minimum(least, other_tensor, out=least)
    return least.view(torch.int32)


def pack_columns(codes: torch.Tensor, out: torch.Tensor) -> None:
    """Pack 4-bit codes [rows, columns] into bytes [rows, columns / 2], even columns in low bits."""
    pairs = codes.view(torch.int16)  # the even column is the low byte of a pair
    packed_tensor = empty_scratch("pairs", tuple(pairs.shape), codes, torch.int16)
    torch.bitwise_right_shift(pairs, 4, out=packed_tensor)
    out.copy_(packed_tensor.bitwise_or_(pairs))


def pack_rows(codes: torch.Tensor, out: torch.Tensor) -> None:
    """Pack 4-bit codes [rows, columns] into bytes [rows / 2, columns], even rows in low bits."""
    odd = codes[1::2]
    packed_tensor = empty_scratch("pairs", tuple(odd.shape), codes, torch.uint8)
    torch.bitwise_left_shift(odd, 4, out=packed_tensor)
    out.copy_(packed_tensor.bitwise_or_(codes[0::2]))


@dataclass(frozen=True, slots=True)
class PackedE2m1(Coding):
    """The e2m1 coding with two elements per byte, the even column in the low bits."""

    per_byte: ClassVar[int] = 2

    def decode(self, data: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Decode packed e2m1 bytes to fp32 in `out`, which is contiguous, and return `out`."""
        codes = empty_scratch("codes", tuple(data.shape), data, torch.int32).copy_(data)
        # Both values of a byte are looked up as one 64-bit number.
        target = out.view(torch.int64).flatten()
        torch.index_select(_pairs(data.device), 0, codes.flatten(), out=target)
        return out

    def unpacked(self, data: torch.Tensor) -> torch.Tensor:
        """Return the 4-bit codes in packed bytes, one byte per element."""
        return torch.stack((data & 0x0F, data >> 4), -1).flatten(-2)

    def pack_(self, codes: torch.Tensor, out: torch.Tensor) -> None:
        """Pack 4-bit codes, given as one byte per element, into `out`, two per byte."""
        pack_columns(codes.contiguous(), out)


E2M1 = PackedE2m1()


@cache
def values_of_codes(device: torch.device) -> torch.Tensor:
    """Return the value of each 4-bit code, fp32 [16]."""
    magnitudes = torch.tensor(GRID, dtype=torch.float32, device=device)
    return torch.cat((magnitudes, -magnitudes))


@cache
def _pairs(device: torch.device) -> torch.Tensor:
    """Return a table from a byte to its two fp32 values, as bits of an int64; int64 [256]."""
    values = values_of_codes(device)
    high, low = torch.meshgrid(values, values, indexing="ij")
    return torch.stack((low, high), -1).view(torch.int64).flatten()
