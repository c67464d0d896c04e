"""Operands: which are made, what they hold, and that neither tiles nor modes show in them."""

from __future__ import annotations

import pickle

import pytest
import torch

from pytest_precision import formats
from pytest_precision.formats import tiles

PLAIN = [
    "fp8_current_e4m3",
    "fp8_delayed_e5m2",
    "fp8_block_1x128_e4m3_f32",
    "fp8_block_128x128_e5m2_pow2",
    "mxfp8_e4m3",
    "mxfp8_e4m3_2d",
    "mxfp8_e5m2_floor",
    "nvfp4_1d_torchao",
    "nvfp4_1d_rht",
    "nvfp4_2d",
]
"""One of each family and variant; the elements make no difference here."""


def sample(rows: int = 160, columns: int = 272) -> torch.Tensor:
    """A bf16 matrix of several blocks of every size, whole for NVFP4 and ragged for the others."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)).bfloat16()


def same(left: formats.Operand, right: formats.Operand) -> bool:
    """Whether bytes, scales and amaxes are equal."""
    return (
        torch.equal(left.data, right.data)
        and torch.equal(left.scale, right.scale)
        and (left.amax is right.amax is None or torch.equal(left.amax, right.amax))
    )


def test_one_operand_alone_is_the_same() -> None:
    """Asking for one side changes nothing in it and leaves out the other."""
    for name in PLAIN:
        both = formats.by_name(name).quantize(sample())
        for side in ("rowwise", "columnwise"):
            alone = formats.by_name(name).quantize(sample(), usage=side)
            assert same(getattr(alone, side), getattr(both, side)), (name, side)
            assert set(alone.operands) == {side}, name


def test_an_operand_that_was_not_made_is_an_error() -> None:
    """The message says how to get it."""
    quantized = formats.by_name("mxfp8_e4m3").quantize(sample(), usage="columnwise")
    with pytest.raises(ValueError, match=r"expected a rowwise operand .* usage='both'"):
        quantized.dequantize()
    with pytest.raises(
        ValueError,
        match=r"expected usage to be one of both, rowwise, columnwise but got usage='rows' \(str\)",
    ):
        formats.by_name("mxfp8_e4m3").quantize(sample(), usage="rows")


def test_the_size_of_tiles_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small tiles and one large tile give the same bits."""
    large = {name: formats.by_name(name).quantize(sample()) for name in PLAIN}
    values = {name: quantized.dequantize() for name, quantized in large.items()}
    monkeypatch.setattr(tiles, "CPU_ELEMENTS", 1)
    monkeypatch.setattr(tiles, "TILE_WIDTH", 128)
    assert len(list(tiles.tile_spans(160, 272, torch.device("cpu")))) == 9
    for name in PLAIN:
        small = formats.by_name(name).quantize(sample())
        assert same(small.rowwise, large[name].rowwise), name
        assert same(small.columnwise, large[name].columnwise), name
        assert torch.equal(small.dequantize(), values[name]), name


def test_strides_do_not_show() -> None:
    """A transposed view is quantized as its copy is, in fp32 too."""
    x = sample(272, 160).t()
    assert not x.is_contiguous()
    for name in PLAIN:
        for view in (x,) if "rht" in name else (x, x.float()):
            quantized = formats.by_name(name).quantize(view)
            copied = formats.by_name(name).quantize(view.contiguous())
            assert same(quantized.rowwise, copied.rowwise), (name, view.dtype)
            assert same(quantized.columnwise, copied.columnwise), (name, view.dtype)


def test_a_pending_negation_does_not_show() -> None:
    """A view that torch negates when it is read is quantized as what it reads as."""
    for name in PLAIN:
        quantized, negative = (
            formats.by_name(name).quantize(x) for x in (-sample(), torch._neg_view(sample()))
        )
        assert same(negative.rowwise, quantized.rowwise), name
        assert same(negative.columnwise, quantized.columnwise), name


def test_modes_do_not_show() -> None:
    """Autograd, an earlier call in inference mode, and another default dtype change nothing."""
    small, large = sample(), sample(320, 544)
    for name in PLAIN:
        expected = formats.by_name(name).quantize(small.detach()).rowwise
        torch.set_default_dtype(torch.float64)
        try:
            with torch.inference_mode():
                formats.by_name(name).quantize(large)
            found = formats.by_name(name).quantize(small.requires_grad_()).rowwise
            assert same(found, expected), name
        finally:
            torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("shape", [(0, 64), (64, 0)])
def test_an_empty_matrix_has_empty_operands(shape: tuple[int, int]) -> None:
    """An expert without tokens is no error."""
    for name in PLAIN:
        quantized = formats.by_name(name).quantize(torch.ones(shape).bfloat16())
        assert quantized.dequantize().shape == shape, name
        assert quantized.columnwise.dequantize().shape == shape, name


def test_the_input_is_left_alone() -> None:
    """Scratch is never the caller's memory, not even where fp32 needs no copy."""
    for name in PLAIN:
        x = sample() if "rht" in name else sample(128, 256).float()
        x[0, 0] = float("nan")
        before = x.clone()
        formats.by_name(name).quantize(x)
        assert torch.equal(x.view(torch.uint8), before.view(torch.uint8)), name


def test_values_are_rounded_once_to_the_asked_dtype() -> None:
    """Dequantizing to 16 bits is rounding the fp32 values."""
    for name in PLAIN:
        quantized = formats.by_name(name).quantize(sample())
        values = quantized.dequantize()
        for dtype in (torch.bfloat16, torch.float16):
            assert torch.equal(quantized.dequantize(dtype), values.to(dtype)), (name, dtype)


def test_dequantizing_to_an_integer_is_refused() -> None:
    """Only the dtypes of inputs."""
    quantized = formats.by_name("mxfp8_e4m3").quantize(sample())
    with pytest.raises(TypeError, match=r"expected a dtype in .* but got dtype=torch\.int8"):
        quantized.dequantize(torch.int8)


@pytest.mark.parametrize("name", ["fp8_current_e4m3", "fp8_block_128x128_e4m3_pow2"])
@pytest.mark.parametrize("rows", [1, 160])
def test_operands_share_no_memory(name: str, rows: int) -> None:
    """A transpose that is not rebuilt after a write must be able to go stale, even of one row."""
    quantized = formats.by_name(name).quantize(sample(rows))
    quantized.rowwise.data.zero_()
    assert quantized.columnwise.data.any()


def test_a_quantized_tensor_can_be_sent() -> None:
    """It pickles, with all that is needed to read it."""
    for name in PLAIN:
        quantized = formats.by_name(name).quantize(sample())
        received = pickle.loads(pickle.dumps(quantized))
        assert torch.equal(received.dequantize(), quantized.dequantize()), name


def test_the_scratch_is_bounded() -> None:
    """A large matrix of any shape leaves no more behind than a tile."""
    tiles._thread_scratch.buffers.clear()
    threads = min(torch.get_num_threads(), tiles.CPU_THREADS)
    for rows, columns in ((2048, 1024), (16, 1 << 18), (1 << 17, 16)):
        formats.by_name("nvfp4_1d").quantize(torch.ones(rows, columns, dtype=torch.bfloat16))
        largest = max(buffer.numel() for buffer in tiles._thread_scratch.buffers.values())
        assert largest <= tiles.CPU_ELEMENTS * threads


def test_the_default_device_does_not_show() -> None:
    """Nothing is made on another device than the input's."""
    expected = formats.by_name("nvfp4_1d_rht").quantize(sample())
    x = sample()
    with torch.device("meta"):
        quantized = formats.by_name("nvfp4_1d_rht").quantize(x)
    assert same(quantized.columnwise, expected.columnwise)
    assert torch.equal(quantized.dequantize(), expected.dequantize())
