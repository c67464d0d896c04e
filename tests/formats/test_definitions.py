"""Inputs on which the definitions of the field differ, and which of them a name stands for."""

from __future__ import annotations

import math

import pytest
import torch

from pytest_precision import formats

INFINITY, NAN = math.inf, math.nan


def block(first: float, second: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """32 elements in a row, all but two of them zero."""
    x = torch.zeros(1, 32)
    x[0, :2] = torch.tensor([first, second])
    return x.to(dtype)


@pytest.mark.parametrize(
    ("first", "second", "ceil", "floor"),
    [
        (500.0, 1.0, (128, 0x78, 0x30), (127, 0x7E, 0x38)),
        (448.0, 17.0, (127, 0x7E, 0x58), (127, 0x7E, 0x58)),
        ((448.0 + 2.0**-15) * 2.0**10, 0.0, (138, 0x76, 0), (137, 0x7E, 0)),
        (INFINITY, 1.0, (254, 0x7E, 0x00), (247, 0x7E, 0x00)),
        (NAN, 1.0, (119, 0x7F, 0x78), (255, 0x7F, 0x00)),
        (2.0**20 - 2.0**-4, 3.0, (139, 0x78, 0x00), (138, 0x7E, 0x01)),
    ],
)
def test_mxfp8_rounds_its_scale_up_or_down(
    first: float, second: float, ceil: tuple[int, ...], floor: tuple[int, ...]
) -> None:
    """Scale byte and two element bytes: Transformer Engine's, then those of OCP and torchao."""
    for name, expected in (("mxfp8_e4m3", ceil), ("mxfp8_e4m3_floor", floor)):
        operand = formats.by_name(name).quantize(block(first, second)).rowwise
        assert (int(operand.scale), *operand.data[0, :2].tolist()) == expected


def test_mxfp8_at_the_smallest_scale() -> None:
    """Torchao divides by 2**-126 and reads back 2**-127: it halves what is that small."""
    x = block(1e-37, 5e-38, torch.bfloat16)
    ours, torchao = (formats.by_name(f"mxfp8_e4m3{end}").quantize(x) for end in ("", "_floor"))
    assert ours.rowwise.data[0, :2].tolist() == [0x58, 0x50]
    assert torchao.rowwise.data[0, :2].tolist() == [0x50, 0x48]
    assert torch.equal(torchao.dequantize() * 2, ours.dequantize())


@pytest.mark.parametrize(
    ("name", "inverse"),
    [
        ("fp8_block_1x128_e4m3_f32", 1 / torch.finfo(torch.bfloat16).max),
        ("fp8_current_e4m3", 1 / torch.finfo(torch.float32).max),
    ],
)
def test_a_scale_that_overflows(name: str, inverse: float) -> None:
    """Blocks fall back to the largest number of the input's dtype, tensors to that of fp32."""
    operand = formats.by_name(name).quantize(block(1e-36, 0.0, torch.bfloat16)).rowwise
    assert float(operand.scale) == float(torch.tensor(inverse, dtype=torch.float64).float())


def test_primary_weights_fall_back_to_the_largest_fp32() -> None:
    """The option is the definition of the cast from fp32 masters."""
    cast = formats.by_name("fp8_block_1x128_e4m3_f32", if_infinite=torch.finfo(torch.float32).max)
    operand = cast.quantize(block(1e-36, 0.0, torch.bfloat16)).rowwise
    assert operand.scale.allclose(torch.tensor(2.9387e-39), rtol=1e-3, atol=0)


@pytest.mark.parametrize("name", ["fp8_current_e4m3", "fp8_block_1x128_e4m3_pow2"])
def test_an_amax_that_is_no_number_gives_scale_one(name: str) -> None:
    """Infinity saturates beside numbers that keep their size; NaN counts for no amax."""
    infinite = formats.by_name(name).quantize(block(INFINITY, 2.0))
    assert infinite.dequantize()[0, :3].tolist() == [448.0, 2.0, 0.0]
    assert float(formats.by_name(name).quantize(block(0.0, 0.0)).rowwise.scale) == 1.0
    beside_nan = formats.by_name(name).quantize(block(NAN, 7.0)).dequantize()
    assert beside_nan[0, 0].isnan()
    assert float(beside_nan[0, 1]) == 7.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["fp8_current_e4m3", "mxfp8_e4m3", "fp8_block_128x128_e4m3_pow2"])
def test_nan_counts_for_no_amax(name: str, dtype: torch.dtype) -> None:
    """In every dtype, the scale is what it would be with 0 in the place of NaN."""
    with_nan, without = (block(value, 3.0, dtype) for value in (NAN, 0.0))
    quantized = formats.by_name(name).quantize(with_nan)
    assert torch.equal(
        quantized.rowwise.scale, formats.by_name(name).quantize(without).rowwise.scale
    )
    assert quantized.dequantize().isnan().sum() == 1


def test_epsilon_is_the_least_amax() -> None:
    """Below it, the scale stays as it is at epsilon."""
    for name in ("fp8_current_e4m3", "fp8_block_128x128_e4m3_f32"):
        quantized = formats.by_name(name, epsilon=7.0).quantize(block(0.5, 0.0))
        assert float(quantized.rowwise.scale) == float(torch.tensor(64.0).reciprocal())


def test_nvfp4_divides_once_and_torchao_twice() -> None:
    """With an amax of the tensor of .75 and of a block of .28125, the scales differ by a step."""
    x = torch.zeros(16, 32)
    x[0, 0], x[0, 16] = 0.75, 0.28125
    ours, torchao = (
        formats.by_name(name).quantize(x).rowwise for name in ("nvfp4_1d", "nvfp4_1d_torchao")
    )
    assert (int(ours.scale[0, 1]), int(torchao.scale[0, 1])) == (115, 114)


@pytest.mark.parametrize(("amax", "zeros"), [(5.1e-34, 0x00), (4.9e-34, 0xBB)])
def test_torchao_multiplies_by_infinity_below_5e_34(amax: float, zeros: int) -> None:
    """Which makes NaN of 0 in a block of the least scale; torchao's code for it is that of -1.5."""
    x = torch.zeros(16, 16)
    x[0, :4] = torch.tensor([amax, -amax / 8, 0.0, -0.0])
    operand = formats.by_name("nvfp4_1d_torchao").quantize(x).rowwise
    assert operand.scale[:2, 0].tolist() == [0x7E, 0x08]
    assert operand.data[0, :3].tolist() == [0xA7, 0x80, 0x00]
    assert bool((operand.data[1] == zeros).all())


def test_nan_is_the_amax_of_torchao() -> None:
    """Of the whole tensor: every scale of it is NaN, and so is every value."""
    x = torch.ones(16, 32)
    x[3, 5] = NAN
    operand = formats.by_name("nvfp4_1d_torchao").quantize(x).rowwise
    assert bool((operand.scale & 0x7F == 0x7F).all())
    assert bool(operand.dequantize().isnan().all())
