"""Sizes of no block: what is missing counts as zero."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from surroundings import foreign_at_night
from torch.nn import functional as F

from pytest_precision.formats import by_name
from pytest_precision.modules.padding import padded_shape, quantize_padded

LARGEST_BLOCK = 128
FORMATS = [
    "fp8_current_e5m2",
    "fp8_block_1x128_e4m3_pow2",
    "fp8_block_128x128_e4m3_pow2",
    "mxfp8_e4m3",
    "nvfp4_1d_rht",
    "nvfp4_2d",
]


@foreign_at_night
@settings(max_examples=12)
@given(rows=st.integers(1, 150), columns=st.integers(1, 150), seed=st.integers(0, 99))
def test_a_partial_block_is_a_block_with_zeros(rows: int, columns: int, seed: int) -> None:
    """Both operands have the values of a matrix that was padded to whole blocks of every format."""
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).bfloat16()
    whole = F.pad(x, (0, -columns % LARGEST_BLOCK, 0, -rows % LARGEST_BLOCK))
    for name in FORMATS:
        made, padded = quantize_padded(by_name(name), x), by_name(name).quantize(whole)
        for side in ("rowwise", "columnwise"):
            held = made.operands[side].dequantize()
            assert held.shape == padded_shape(by_name(name), (rows, columns)), name
            expected = padded.operands[side].dequantize()
            assert torch.equal(held, expected[: held.shape[0], : held.shape[1]]), (name, side)
            assert not expected[held.shape[0] :].any(), (name, side)
            assert not expected[:, held.shape[1] :].any(), (name, side)
