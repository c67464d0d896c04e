"""Properties that hold for whole families of formats, on inputs that Hypothesis looks for."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from surroundings import foreign_at_night

from pytest_precision import formats
from pytest_precision.formats.elements import ELEMENT_OF_NAME

pytestmark = foreign_at_night

NEAREST = [name for name in formats.names() if "_sr" not in name]
NO_TRANSFORM = [name for name in NEAREST if "rht" not in name]
MXFP8 = [name for name in NEAREST if name.startswith("mxfp8")]
SATURATING = [name for name in MXFP8 if "floor" in name]
SCALE_FREE = [
    name
    for name in NO_TRANSFORM
    if name.startswith(("fp8_current", "fp8_block", "mxfp8", "nvfp4")) and "torchao" not in name
]
"""Formats whose bytes do not change when the input is multiplied by a power of two."""
REPEATABLE = [
    name for name in NO_TRANSFORM if name.startswith(("mxfp8", "fp8_delayed")) or "pow2" in name
]
"""Formats whose scales are powers of two."""


def random_matrix(seed: int, spread: float, shape: tuple[int, int] = (32, 48)) -> torch.Tensor:
    """bf16 numbers whose exponents spread over about `spread` powers of two."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.rand(shape, generator=generator) * spread
    return (torch.randn(shape, generator=generator) * torch.exp2(exponents)).bfloat16()


few = settings(max_examples=8)
seeds = st.integers(0, 2**32 - 1)
spreads = st.sampled_from([0.0, 3.0, 12.0, 30.0])


def quantize(name: str, x: torch.Tensor) -> formats.QuantizedTensor:
    """A matrix in a format to which nothing happened before."""
    return formats.by_name(name).quantize(x)


@few
@given(seed=seeds, spread=spreads)
def test_quantizing_again_changes_no_value(seed: int, spread: float) -> None:
    """With scales that are powers of two, a dequantized matrix is its own dequantized matrix."""
    x = random_matrix(seed, spread)
    for name in REPEATABLE:
        once = quantize(name, x).dequantize()
        assert torch.equal(quantize(name, once).dequantize(), once), name


@few
@given(seed=seeds, spread=spreads)
def test_order_within_a_block_is_kept(seed: int, spread: float) -> None:
    """Sorting a row inside a block and quantizing gives sorted values."""
    x = random_matrix(seed, spread, (16, 16)).flatten().sort().values.view(16, 16)
    for name in NO_TRANSFORM:
        assert (quantize(name, x).dequantize().diff(dim=1) >= 0).all(), name


@few
@given(seed=seeds, spread=spreads, power=st.integers(-20, 20))
def test_a_power_of_two_moves_into_the_scale(seed: int, spread: float, power: int) -> None:
    """The bytes stay, and every value is multiplied by exactly that power."""
    x = random_matrix(seed, spread)
    for name in SCALE_FREE:
        plain, scaled = quantize(name, x), quantize(name, x * 2.0**power)
        assert torch.equal(scaled.rowwise.data, plain.rowwise.data), name
        assert torch.equal(scaled.columnwise.data, plain.columnwise.data), name
        assert torch.equal(scaled.dequantize(), plain.dequantize() * 2.0**power), name


@few
@given(seed=seeds, spread=spreads)
def test_a_sign_is_only_a_sign(seed: int, spread: float) -> None:
    """The negative matrix has the negative values, and the same scales."""
    x = random_matrix(seed, spread)
    for name in NO_TRANSFORM:
        plain, negative = quantize(name, x), quantize(name, -x)
        assert torch.equal(negative.rowwise.scale, plain.rowwise.scale), name
        assert torch.equal(negative.dequantize(), -plain.dequantize()), name


@few
@given(seed=seeds, spread=spreads)
def test_columnwise_is_rowwise_of_the_transpose(seed: int, spread: float) -> None:
    """The values of a columnwise operand are those of the transposed matrix's rowwise operand."""
    x = random_matrix(seed, spread)
    for name in NO_TRANSFORM:
        columnwise = quantize(name, x).columnwise
        rowwise = quantize(name, x.t().contiguous()).rowwise
        stored = columnwise.data if columnwise.storage.transposed else columnwise.data.t()
        assert torch.equal(stored, rowwise.data), name
        assert torch.equal(columnwise.dequantize(), rowwise.dequantize().t()), name


@few
@given(seed=seeds)
def test_rows_and_columns_of_mxfp8_agree_unless_one_underflows(seed: int) -> None:
    """Where neither operand lost bits to subnormal elements, both have the same value."""
    for name in (name for name in MXFP8 if "floor" not in name):
        quantized = quantize(name, random_matrix(seed, 0.0))
        rows, columns = quantized.dequantize(), quantized.columnwise.dequantize()
        small = 2.0 ** (-6 if "e4m3" in name else -14)
        normal = torch.ones_like(rows, dtype=torch.bool)
        for operand in (quantized.rowwise, quantized.columnwise):
            element = operand.storage.element
            decoded = element.decode(operand.data, torch.empty(operand.data.shape))
            normal &= decoded.abs() > small
        assert normal.any(), name
        assert torch.equal(rows[normal], columns[normal]), name


@few
@given(seed=seeds, spread=spreads)
def test_the_largest_element_is_near_its_value(seed: int, spread: float) -> None:
    """Nothing saturates: the largest magnitude is off by no more than its element's half step."""
    drawn = random_matrix(seed, spread)
    for name in (name for name in NO_TRANSFORM if name not in SATURATING):
        x = drawn / drawn.abs().max() * 100 if name.startswith("fp8_delayed") else drawn
        values = quantize(name, x).dequantize()
        half_step = 2.0**-3 if "e5m2" in name else 2.0**-4 if "fp8" in name else 0.25
        largest = float(x.abs().max())
        assert abs(float(values.abs().max()) - largest) <= largest * half_step, name


@pytest.mark.parametrize("name", SATURATING)
def test_the_floor_scale_saturates(name: str) -> None:
    """Above 1.75 times a power of two, rounding the scale down clips the element."""
    element = ELEMENT_OF_NAME["e4m3" if "e4m3" in name else "e5m2"]
    x = torch.full((1, 32), element.maximum * 1.1)
    assert torch.equal(quantize(name, x).dequantize(), torch.full((1, 32), element.maximum))


@settings(max_examples=40)
@given(st.lists(st.floats(-(2.0**127), 2.0**127, width=32), min_size=32, max_size=32))
@example([448 * 2.0**10] * 32)
@example([math.nextafter(448.0, math.inf)] * 32)
@example([1e-45] * 32)
def test_mxfp8_is_within_half_a_step(values: list[float]) -> None:
    """For any block, up to the first subnormal numbers: an element is within half a step."""
    x = torch.tensor([values], dtype=torch.float32).double()
    off = (quantize("mxfp8_e4m3", x.float()).dequantize().double() - x).abs()
    # A block's scale is at most 2 / 448 of its largest number, and never below 2**-127; its
    # smallest elements are multiples of 2**-9.
    smallest = torch.clamp(x.abs().max() * 2 / 448, min=2.0**-127) * 2.0**-9
    assert (off <= torch.maximum(x.abs() * 2.0**-4, smallest / 2)).all()
