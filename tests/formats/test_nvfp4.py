"""What NVFP4 does beyond the golden vectors: random bits, the transform, special numbers."""

from __future__ import annotations

import pytest
import torch

from pytest_precision import formats
from pytest_precision.formats.hadamard import SIGNS, transformed


def bits(shape: tuple[int, int], value: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same random byte for every element of both operands."""
    return tuple(
        torch.full(size, value, dtype=torch.uint8) for size in (shape, (shape[1], shape[0]))
    )


def test_the_mean_of_stochastic_rounding_is_that_of_256_steps() -> None:
    """An element goes up for as many of the 256 bytes as floor(256 f)."""
    x = torch.zeros(16, 256)
    x[:, 0::16], x[:, 1::16] = 6.0, 3.3
    random = torch.arange(256).to(torch.uint8)[:, None].expand(256, 256).contiguous()
    tall = x.repeat(16, 1)
    stochastic = formats.by_name("nvfp4_1d_sr")
    values = stochastic.quantize(tall, (random, None), usage="rowwise").dequantize()
    raised = int((values[:, 1] > 3.5).sum())
    assert set(values[:, 1].tolist()) == {3.0, 4.0}
    assert raised == int(256 * 0.3)


def test_zero_bits_round_down() -> None:
    """No byte, no rise: the values are the grid below."""
    x = torch.full((16, 16), 3.99)
    x[:, 0] = 6.0
    quantized = formats.by_name("nvfp4_1d_sr").quantize(x, bits((16, 16), 0))
    assert torch.equal(quantized.dequantize()[:, 1:], torch.full((16, 15), 3.0))


def test_random_bits_are_read_in_the_shape_of_their_operand() -> None:
    """The columnwise operand's bits are those of the transposed matrix."""
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(0))
    random = torch.randint(0, 256, (32, 16), dtype=torch.uint8)
    stochastic = formats.by_name("nvfp4_1d_sr")
    columnwise = stochastic.quantize(x, (None, random), usage="columnwise").columnwise
    rowwise = stochastic.quantize(x.t(), (random, None), usage="rowwise").rowwise
    assert torch.equal(columnwise.data, rowwise.data)


def test_the_transform_is_orthonormal() -> None:
    """One 1 in a block becomes the signs of that row, a quarter each."""
    x = torch.eye(16).bfloat16()
    result = transformed(x).float()
    assert torch.equal(result.abs(), torch.full((16, 16), 0.25))
    assert torch.equal(result @ result.t(), torch.eye(16))
    assert torch.equal(result[0] * 4, torch.tensor(SIGNS).float())


def test_the_transform_rounds_once() -> None:
    """A sum just beside a tie of bf16 does not become that tie on its way through fp32."""
    x = torch.zeros(16, 1)
    x[:3, 0] = torch.tensor([4.0, 2.0**-6, 2.0**-24])
    x *= torch.tensor(SIGNS)[:, None]
    exact = 1 + 2.0**-8 + 2.0**-26
    assert float(torch.tensor(exact, dtype=torch.float64).float().bfloat16()) == 1.0
    assert float(transformed(x.bfloat16())[0, 0]) == 1.0 + 2.0**-7


def test_the_transform_leaves_no_negative_zero() -> None:
    """A sum of zeros is +0, whatever their signs."""
    result = transformed(torch.full((16, 4), -0.0).bfloat16())
    assert not result.signbit().any()


def test_only_the_columnwise_operand_is_transformed() -> None:
    """The rowwise operand is that of the format without a transform."""
    x = torch.randn(32, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
    plain = formats.by_name("nvfp4_1d").quantize(x)
    turned = formats.by_name("nvfp4_1d_rht").quantize(x)
    assert torch.equal(plain.rowwise.data, turned.rowwise.data)
    expected = formats.by_name("nvfp4_1d").quantize(transformed(x)).columnwise
    assert torch.equal(turned.columnwise.data, expected.data)
    assert torch.equal(turned.columnwise.amax, expected.amax)


def test_nan_becomes_plus_six_and_counts_for_no_amax() -> None:
    """The kernels' cast has no NaN, and their amax ignores it."""
    x = torch.ones(16, 16)
    x[0, 3], x[1, 4] = float("nan"), float("-nan")
    operand = formats.by_name("nvfp4_1d").quantize(x).rowwise
    assert float(operand.amax) == 1.0
    assert operand.data[0, 1] >> 4 == 7
    assert operand.data[1, 2] & 15 == 7


def test_a_tiny_block_beside_a_large_one_has_scale_zero() -> None:
    """Its elements have codes, but their value is 0; torchao gives such a block its least scale."""
    x = torch.zeros(16, 32)
    x[0, 0], x[0, 16], x[0, 17] = 2688.0, 0.002, -0.001
    ours, torchao = (
        formats.by_name(name).quantize(x).rowwise for name in ("nvfp4_1d", "nvfp4_1d_torchao")
    )
    assert (ours.scale[0, 1], ours.data[0, 8]) == (0, 7 | 15 << 4)
    assert (torchao.scale[0, 1], torchao.data[0, 8]) == (8, 0 | 8 << 4)
    assert (ours.dequantize()[0, 16:] == 0).all()


def test_the_amax_of_ranks_sets_the_scale() -> None:
    """A reduction that answers a larger amax gives what the tensor with that amax would get."""
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(0))
    whole = torch.cat((x, torch.full((16, 32), 9.0)))
    shard = formats.by_name("nvfp4_1d", reduce_amax=lambda amax: amax.clamp(min=9.0)).quantize(x)
    together = formats.by_name("nvfp4_1d").quantize(whole)
    assert torch.equal(shard.rowwise.data, together.rowwise.data[:16])
    assert torch.equal(shard.rowwise.scale, together.rowwise.scale[:16])


@pytest.mark.parametrize("random", [None, torch.zeros(16, 16), (None, None)])
def test_missing_random_bits_are_refused(random: object) -> None:
    """The message says what to draw."""
    with pytest.raises(TypeError, match=r"expected .* random bits .* torch\.randint"):
        formats.by_name("nvfp4_1d_sr").quantize(torch.ones(16, 16), random)


def test_random_bits_of_another_shape_are_refused() -> None:
    """The columnwise bits have the transposed shape."""
    same = torch.zeros(16, 32, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"columnwise random bits of shape \(32, 16\)"):
        formats.by_name("nvfp4_1d_sr").quantize(torch.ones(16, 32), (same, same))


def test_the_transform_takes_bf16_only() -> None:
    """So does the kernel."""
    with pytest.raises(TypeError, match=r"expected x of dtype torch\.bfloat16 .* cast x"):
        formats.by_name("nvfp4_1d_rht").quantize(torch.ones(16, 16))
