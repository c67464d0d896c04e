"""Scales as the kernels store them."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pytest_precision import formats
from pytest_precision.formats import layout


def numbered(rows: int, columns: int) -> torch.Tensor:
    """A matrix of bytes that are mostly different."""
    return torch.arange(rows * columns).remainder(251).to(torch.uint8).view(rows, columns)


@pytest.mark.parametrize("shape", [(1, 1), (128, 4), (130, 9), (300, 3)])
def test_swizzled_entries_are_where_the_formula_puts_them(shape: tuple[int, int]) -> None:
    """((i/128) ceil(C/4) + j/4) 512 + (i%32) 16 + (i%128)/32 4 + j%4, and zeros elsewhere."""
    scale = numbered(*shape) + 1
    swizzled = layout.swizzled_scale(scale).tolist()
    for i, row in enumerate(scale.tolist()):
        for j, entry in enumerate(row):
            block = (i // 128) * -(-shape[1] // 4) + j // 4
            place = block * 512 + (i % 32) * 16 + i % 128 // 32 * 4 + j % 4
            assert swizzled[place] == entry
            swizzled[place] = 0
    assert not any(swizzled)


@pytest.mark.parametrize("shape", [(1, 1), (128, 4), (130, 9)])
def test_unswizzling_gives_the_scale_back(shape: tuple[int, int]) -> None:
    """The two functions are inverse to each other."""
    scale = numbered(*shape)
    assert torch.equal(layout.unswizzled_scale(layout.swizzled_scale(scale), shape), scale)


@pytest.mark.parametrize("shape", [(1, 1), (4, 128), (9, 130)])
def test_a_scale_of_blocks_along_a_column_is_stored_transposed(shape: tuple[int, int]) -> None:
    """MXFP8's columnwise scale, there and back."""
    scale = numbered(*shape)
    swizzled = layout.swizzled_scale(scale, turned=True)
    assert torch.equal(swizzled, layout.swizzled_scale(scale.t()))
    assert torch.equal(layout.unswizzled_scale(swizzled, shape, turned=True), scale)


def test_no_fake_tensor_is_kept_for_later_scales() -> None:
    """Real scales of a shape that was fake at first are swizzled as any others."""
    with FakeTensorMode():
        layout.swizzled_scale(torch.zeros((7, 11), dtype=torch.uint8))
    scale = numbered(7, 11)
    assert torch.equal(layout.unswizzled_scale(layout.swizzled_scale(scale), (7, 11)), scale)


def test_padding_is_zero_and_behind() -> None:
    """The scale keeps its place; MXFP8's columnwise scale is padded the other way."""
    scale = numbered(33, 5)
    padded = layout.padded_scale(scale, (4, 128))
    assert padded.shape == (36, 128)
    assert torch.equal(padded[:33, :5], scale)
    assert not padded[33:].any()
    assert not padded[:, 5:].any()


@pytest.mark.parametrize(
    ("name", "side", "stored"),
    [
        ("fp8_block_1x128_e4m3_pow2", "rowwise", (3, 132)),
        ("fp8_block_1x128_e4m3_pow2", "columnwise", (2, 260)),
        ("fp8_block_128x128_e4m3_pow2", "rowwise", (2, 4)),
        ("fp8_block_128x128_e4m3_pow2", "columnwise", (3, 4)),
    ],
)
def test_blockwise_scales_are_stored_as_the_gemm_reads_them(
    name: str, side: str, stored: tuple[int, int]
) -> None:
    """1 x 128: transposed; both padded to four columns."""
    quantized = formats.by_name(name).quantize(torch.randn(130, 257))
    operand = getattr(quantized, side)
    scale = layout.gemm_ready_scale(operand.scale, operand.storage.block)
    valid = operand.scale.t() if "1x128" in name else operand.scale
    assert scale.shape == stored
    assert torch.equal(scale[: valid.shape[0], : valid.shape[1]], valid)


def test_a_wrong_shape_is_refused() -> None:
    """The number of bytes belongs to one padded shape."""
    with pytest.raises(ValueError, match=r"expected 1024 bytes .* but got swizzled\.numel\(\)=512"):
        layout.unswizzled_scale(torch.zeros(512, dtype=torch.uint8), (129, 4))
    with pytest.raises(
        ValueError, match=r"expected a matrix of scales but got scale\.shape=\(1,\)"
    ):
        layout.swizzled_scale(torch.ones(1))
