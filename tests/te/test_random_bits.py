"""Random bits of stochastic rounding over the stand-in."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from pytest_precision import formats
from pytest_precision.formats.transformer_engine import random_bits
from pytest_precision.te.quantize import quantized

Quantizer = type("NVFP4Quantizer", (SimpleNamespace,), {})


def test_a_quantizer_rounds_by_torchs_bits_unless_it_is_given_some() -> None:
    """What torch draws next is the same after it has rounded by bits that it was given."""
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    given = torch.full((16, 32), 255, dtype=torch.uint8), torch.zeros(32, 16, dtype=torch.uint8)
    format = formats.by_name("nvfp4_1d_sr")
    quantizer = Quantizer(
        row_scaled_nvfp4=False,
        nvfp4_use_4over6=False,
        with_2d_quantization=False,
        with_rht=False,
        stochastic_rounding=True,
    )
    torch.manual_seed(2)
    by_torch = quantized(x, quantizer, ["rowwise", "columnwise"])
    torch.manual_seed(2)
    drawn = random_bits.drawn(quantizer, (16, 32))
    state = torch.get_rng_state()
    random_bits.give(quantizer, lambda shape: given)
    by_given = quantized(x, quantizer, ["rowwise", "columnwise"])
    assert torch.equal(torch.get_rng_state(), state)
    for made, bits in ((by_torch, drawn), (by_given, given)):
        expected = format.quantize(x, bits)
        assert all(
            torch.equal(made.operands[side].data, expected.operands[side].data)
            for side in ("rowwise", "columnwise")
        )
