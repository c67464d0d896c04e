"""The 16-bit remainder of a master weight."""

from __future__ import annotations

import torch

from pytest_precision.optim.remainder import join, split

LOW = (0, 1, 0x1234, 0x7FFF, 0x8000, 0x8001, 0xEDCB, 0xFFFF)
"""Low halves on both sides of what a sign and a rounding turn on."""

WHOLE = (0x0000, 0x0001, 0x3F80, 0x3F81, 0x7F7F, 0x7F80, 0x7FFF, 0x8000, 0xBF80, 0xFF7F)
"""Upper halves that have all low halves: zeros, subnormals, numbers, infinities, NaNs."""


def patterns() -> torch.Tensor:
    """32-bit integers: every upper half with some low halves, and some with all of them."""
    upper, low = torch.arange(1 << 16)[:, None] << 16, torch.tensor(LOW)
    whole = torch.tensor(WHOLE)[:, None] << 16
    parts = [(upper + low).flatten(), (whole + torch.arange(1 << 16)).flatten()]
    return torch.cat(parts).to(torch.int32)


def test_joining_what_was_split_gives_every_master_back() -> None:
    """Infinities, subnormals and zeros included; a NaN gives the quiet NaN."""
    bits = patterns()
    masters = bits.view(torch.float32)
    expected = bits.masked_fill(masters.isnan(), 0x7FC00000)
    assert torch.equal(join(*split(masters)).view(torch.int32), expected)


def test_splitting_what_was_joined_gives_every_pair_back() -> None:
    """No two pairs of a parameter and a remainder are the same number."""
    pairs = patterns()
    parameter = pairs.bitwise_right_shift(16).to(torch.int16).view(torch.bfloat16)
    masters = join(parameter, pairs.to(torch.int16))
    again, remainder = split(masters)
    numbers = ~masters.isnan()
    assert torch.equal(again.view(torch.int16)[numbers], parameter.view(torch.int16)[numbers])
    assert torch.equal(remainder[numbers], pairs.to(torch.int16)[numbers])


def test_only_a_tie_is_rounded_otherwise_than_by_a_cast() -> None:
    """A master's parameter is its bf16 cast, but ties go away from zero, not to even."""
    masters = patterns()
    masters = masters[masters.view(torch.float32).isfinite()]
    parameter, remainder = split(masters.view(torch.float32))
    cast = masters.view(torch.float32).bfloat16()
    tie_from_even = (remainder == -0x8000) & (masters.bitwise_right_shift(16) % 2 == 0)
    assert torch.equal(parameter.view(torch.int16) != cast.view(torch.int16), tie_from_even)


def test_a_tie_goes_away_from_zero() -> None:
    """0x3F808000 lies between 0x3F80, which is even, and 0x3F81; negative numbers mirror it."""
    tie = torch.tensor([0x3F808000, 0x3F808000 - 2**31], dtype=torch.int32).view(torch.float32)
    parameter, _ = split(tie)
    assert parameter.view(torch.int16).tolist() == [0x3F81, 0x3F81 - 2**15]


def test_every_nan_is_a_nan_in_the_parameter() -> None:
    """That of CUDA too, 0x7FFFFFFF, which rounding up would make -0 of."""
    bits = torch.cat((torch.arange(0x7F800001, 0x7FFFFFFF, 997), torch.tensor([0x7FFFFFFF])))
    master = bits.to(torch.int32).view(torch.float32)
    for sign in (master, -master):
        parameter, remainder = split(sign)
        assert (parameter.view(torch.int16) == 0x7FC0).all()
        assert not remainder.any()


def test_a_remainder_of_zero_is_the_parameter_itself() -> None:
    """What a fresh optimizer starts from."""
    parameter = torch.randn(7, 3).bfloat16()
    assert torch.equal(join(parameter, torch.zeros(7, 3, dtype=torch.int16)), parameter.float())


def test_any_shape_and_stride_is_split_elementwise() -> None:
    """Numbers without dimensions, transposed views, and nothing at all."""
    for master in (torch.tensor(1.1), torch.randn(5, 3).T, torch.empty(0, 4)):
        parameter, remainder = split(master)
        assert parameter.shape == remainder.shape == master.shape
        assert torch.equal(join(parameter, remainder), master)
