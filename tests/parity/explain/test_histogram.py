"""Histogram: each element of two tensors counts once, by how far it is off."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_precision.parity.explain.locate import histogram

ONE = 0x3F800000
"""The bits of 1.0 in float32."""


def floats(bits: list[int]) -> torch.Tensor:
    return torch.tensor(bits, dtype=torch.int32).view(torch.float32)


@given(st.lists(st.integers(0, 2**20), min_size=1, max_size=50))
def test_bit_lengths(distances: list[int]) -> None:
    """A distance counts where Python's `int.bit_length` puts it."""
    found = histogram(floats([ONE + n for n in distances]), floats([ONE] * len(distances)))
    expected = [0] * (max(distances).bit_length() + 1)
    for distance in distances:
        expected[distance.bit_length()] += 1
    assert found == {"by_bits": expected, "nan": 0, "infinite": 0}


def test_the_largest_distance_has_its_bit() -> None:
    """Between both ends of float64 lies a distance that float64 itself does not hold."""
    ends = torch.tensor([torch.finfo(torch.float64).max], dtype=torch.float64)
    found = histogram(ends, -ends)
    assert found is not None
    assert len(found["by_bits"]) == 65
    assert sum(found["by_bits"]) == 1


def test_what_is_no_number_is_counted_apart() -> None:
    """A NaN or infinity on one side has no distance; the same one on both sides has none to go."""
    nan, inf = float("nan"), float("inf")
    ours = torch.tensor([nan, 1, inf, inf, -inf, nan, 0.0])
    theirs = torch.tensor([1, nan, 1, inf, inf, nan, -0.0])
    assert histogram(ours, theirs) == {"by_bits": [3], "nan": 2, "infinite": 2}


def test_dtypes_are_compared_by_value() -> None:
    """A bf16 weight has a distance from its fp32 master."""
    master = torch.tensor([1.0, 1.0 + 2**-23])
    assert histogram(master.bfloat16(), master) == {"by_bits": [1, 1], "nan": 0, "infinite": 0}


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64])
def test_dtypes_without_a_distance_have_no_histogram(dtype: torch.dtype) -> None:
    """Integers and complex numbers have no units in the last place."""
    assert histogram(torch.ones(1, dtype=dtype), torch.zeros(1, dtype=dtype)) is None


def test_no_element() -> None:
    """An empty tensor has an empty histogram."""
    assert histogram(torch.empty(0), torch.empty(0)) == {"by_bits": [], "nan": 0, "infinite": 0}
