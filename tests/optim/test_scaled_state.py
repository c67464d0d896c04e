"""State stored with a scale a tensor."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_precision.optim.scaled_state import NAN_BYTE, decode_scaled, encode_

DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.uint8])
LARGEST = {torch.float16: 32752.0, torch.uint8: 448.0}
"""Half the largest fp16 number, and the largest e4m3 number."""
RELATIVE = {torch.float16: 2.0**-11, torch.uint8: 2.0**-4}
"""Half a unit in the last place of a number with 10 or 3 stored bits of mantissa."""
ABSOLUTE = {torch.float16: 2.0**-25, torch.uint8: 2.0**-10}
"""Half the smallest subnormal number."""


def stored(values: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    state, scale = torch.full_like(values, 3, dtype=dtype), torch.ones(())
    encode_(state, scale, values.clone())
    return state, scale


@DTYPES
@settings(max_examples=30)
@given(data=st.lists(st.floats(-1, 1, width=32), max_size=20), exponent=st.integers(-100, 100))
def test_what_is_read_is_what_was_written_to_half_a_step_of_the_format(
    dtype: torch.dtype, data: list[float], exponent: int
) -> None:
    """The format's own bound, and the fp32 roundings of the scale, the product and the quotient."""
    values = torch.tensor([*data, 1.0]) * 2.0**exponent
    state, scale = stored(values, dtype)
    error = (decode_scaled(state, scale).double() - values.double()).abs()
    bound = torch.maximum(values.abs() * RELATIVE[dtype], scale * ABSOLUTE[dtype])
    fp32_roundings = values.abs() * 5 * 2.0**-24 + 2.0**-149
    assert (error <= bound + fp32_roundings).all()


@DTYPES
@settings(max_examples=30)
@given(largest=st.floats(2.0**-100, 2.0**100, width=32), sign=st.sampled_from([1, -1]))
def test_the_largest_magnitude_fills_the_range(
    dtype: torch.dtype, largest: float, sign: int
) -> None:
    """Whatever way the scale was rounded: neither a NaN nor one step less."""
    state, _ = stored(torch.tensor([sign * largest, largest / 2]), dtype)
    as_float = state.view(torch.float8_e4m3fn) if dtype == torch.uint8 else state
    assert as_float.float()[0] == sign * LARGEST[dtype]


def test_fp16_stores_zeros_as_zeros() -> None:
    """The scale of an all-zero tensor is 0, and its reciprocal is not used."""
    state, scale = stored(torch.zeros(5), torch.float16)
    assert state.tolist() == [0.0] * 5
    assert decode_scaled(state, scale).tolist() == [0.0] * 5


def test_fp8_stores_zeros_as_nan() -> None:
    """As Transformer Engine does: 0 * (1 / 0), with one NaN on every machine."""
    state, scale = stored(torch.zeros(5), torch.uint8)
    assert state.tolist() == [NAN_BYTE] * 5
    assert scale == 0
    assert decode_scaled(state, scale).isnan().all()


def test_fp8_reads_with_the_reciprocal_of_what_it_wrote_with() -> None:
    """1 / (1 / scale), which differs from the scale itself for some largest values."""
    largest = torch.linspace(1, 2, 250)
    exact = torch.div(largest, torch.full_like(largest, 448.0))
    scales = torch.stack([stored(value.reshape(1), torch.uint8)[1] for value in largest])
    assert torch.equal(scales, exact.reciprocal().reciprocal())
    assert not torch.equal(scales, exact)


def test_the_scale_is_a_correctly_rounded_quotient() -> None:
    """Not the product with the reciprocal of the range."""
    largest = torch.linspace(1, 2, 250)
    scales = torch.stack([stored(value.reshape(1), torch.float16)[1] for value in largest])
    assert torch.equal(scales, (largest.double() / 32752).float())


def test_fp32_state_is_read_and_written_in_place() -> None:
    """No copy is made of what needs none."""
    state = torch.randn(4)
    assert decode_scaled(state, None) is state


def test_bf16_state_has_no_scale() -> None:
    """bf16 has the exponents of fp32: a cast is enough."""
    values, state = torch.randn(100), torch.empty(100, dtype=torch.bfloat16)
    encode_(state, None, values)
    assert torch.equal(state, values.bfloat16())


@DTYPES
def test_nothing_is_stored_as_nothing(dtype: torch.dtype) -> None:
    """An empty tensor has no largest value, and keeps the scale that it had."""
    state, scale = stored(torch.empty(0, 3), dtype)
    assert state.shape == (0, 3)
    assert scale == 1
