"""Transformer Engine's kernels against the golden vectors, where there is a GPU for them."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Any

import golden_vectors as golden
import pytest
import torch

from pytest_precision import formats
from pytest_precision.formats.native import Native
from pytest_precision.matrix.precisions import PRECISIONS
from pytest_precision.modules import Linear
from pytest_precision.ranks.gpus import backend

CASES = [case for case in range(20) if case != golden.SPECIAL]
OPERANDS = [
    (name, side)
    for name in golden.INPUTS
    for side in ("rowwise", "columnwise")
    if not name.endswith("_sr") and (side == "rowwise" or "rht" not in name)
]
RECIPES = ("fp8_current", "fp8_block", "mxfp8", "nvfp4")


def need(name: str) -> None:
    """Skip a test of a format, or of a precision, and say exactly what is missing for it."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    precision = next(known for known in PRECISIONS if name.startswith(known))
    choice = backend.decide("auto", precision, device)
    if choice.backend != "native":
        pytest.skip(choice.reason)
    if name.endswith("_f32") and torch.cuda.get_device_capability() >= (10, 0):
        pytest.skip(f"{name}: from compute capability 10.0 on, scales must be powers of two")
    if name.startswith("mxfp8") and name.endswith("_2d"):
        engine = backend.installed_version()
        if engine is not None and backend.release_of(engine) < (2, 19):
            pytest.skip(f"{name}: since Transformer Engine 2.19, but here is {engine}")


def both(name: str, case: int) -> tuple[formats.QuantizedTensor, formats.QuantizedTensor]:
    """A golden input as the kernels quantize it, and as the golden files have it."""
    x = golden.matrix(name, case)
    format = formats.by_name(name)
    return Native(format).quantize(x.cuda()), format.quantize(x)


def differing(native: torch.Tensor, emulated: torch.Tensor, *, codes: bool = False) -> int:
    """How many elements differ in their bits, but for the signs of zeros among e2m1 codes."""
    native = native.cpu()
    if codes:
        native, emulated = map(golden.without_zero_signs, (native, emulated))
    return golden.differing_bytes(native, emulated)


@pytest.mark.parametrize(("name", "side"), OPERANDS)
def test_kernels_make_the_golden_operands(name: str, side: str) -> None:
    """Bytes, scales and amaxes, of all inputs but the one with inf and NaN."""
    need(name)
    for case in CASES:
        native, emulated = (getattr(made, side) for made in both(name, case))
        assert native.storage == emulated.storage
        assert differing(native.data, emulated.data, codes="nvfp4" in name) == 0, case
        assert differing(native.scale, emulated.scale) == 0, case
        assert (native.amax is None) == (emulated.amax is None)
        if native.amax is not None:
            assert differing(native.amax, emulated.amax) == 0, case


def test_transformed_operand() -> None:
    """Additions in another order move a transformed element by a bit of bf16. Each operand is
    within one block scale of it: half of the largest step, which is 2, or what saturation cuts.
    """
    need("nvfp4")
    one_bit = 2.0**-7 * 6
    for case in CASES:
        native, emulated = (made.columnwise for made in both("nvfp4_1d_rht", case))
        scales = [
            replace(made, data=torch.full_like(made.data, 0x22)).dequantize().cpu()  # codes of 1
            for made in (native, emulated)
        ]
        difference = (native.dequantize().cpu() - emulated.dequantize()).abs()
        assert torch.all(difference <= (scales[0] + scales[1]) * (1 + one_bit)), case


@pytest.mark.parametrize("name", [n for n in golden.INPUTS if n.startswith(("fp8_current", "mx"))])
def test_nan_stays_nan(name: str) -> None:
    """As a class: the payload is the kernel's affair."""
    need(name)
    native, emulated = both(name, golden.SPECIAL)
    assert torch.equal(native.dequantize().isnan().cpu(), emulated.dequantize().isnan())


def test_delayed_scaling_casts_by_the_golden_scales() -> None:
    """Bytes and amaxes of 40 steps, whose scales come out of the amaxes that the kernel records."""
    need("fp8_delayed")
    for case, about in enumerate(golden.cases("fp8_delayed")):
        expected = {k: golden.tensor(v) for k, v in golden.fields("fp8_delayed", case).items()}
        slot: Any = formats.by_name(
            "fp8_delayed",
            element=about["fmt"],
            algorithm=about["algo"],
            history_length=about["history_len"],
            margin=about["margin"],
            device="cuda",
        )
        for step in range(40):
            made = Native(slot).quantize(expected[f"x{step:02d}"].cuda())
            slot.update()
            data = expected["data"][step]
            assert differing(made.rowwise.data, data) == 0, (case, step)
            assert differing(made.columnwise.data, data.t()) == 0, (case, step)
            assert differing(made.rowwise.amax[0], expected["amax"][step]) == 0, (case, step)
            assert differing(slot.scale[0], expected["scale_after"][step]) == 0, (case, step)


def test_stochastic_rounding_follows_its_probability() -> None:
    """With an amax of 6 all scales are 1, and 2 + 76/256 becomes 3 in 76 of 256 cases: 4 sigma."""
    need("nvfp4")
    x = torch.full((1024, 1024), 2 + 76 / 256, dtype=torch.bfloat16, device="cuda")
    x[:, ::16] = 6.0
    format = Native(formats.by_name("nvfp4_1d_rht_sr"))
    values = format.quantize(x, 7).dequantize()[x < 6]
    p, n = 76 / 256, values.numel()
    assert torch.all((values == 2) | (values == 3))
    assert abs(float((values == 3).float().mean()) - p) <= 4 * sqrt(p * (1 - p) / n)


def test_seeds_decide_about_stochastic_rounding() -> None:
    """The same seed gives the same codes and leaves the generator alone; another gives others."""
    need("nvfp4")
    x = golden.matrix("nvfp4_1d_rht_sr", 0).cuda()
    format = Native(formats.by_name("nvfp4_1d_rht_sr"))
    before = torch.cuda.get_rng_state()
    first, again, other = (format.quantize(x, seed).rowwise for seed in (1, 1, 2))
    assert torch.equal(first.data, again.data)
    assert not torch.equal(first.data, other.data)
    assert torch.equal(first.scale, other.scale)
    assert torch.equal(torch.cuda.get_rng_state(), before)


@pytest.mark.parametrize("precision", [p for p in RECIPES if p != "nvfp4"])
def test_a_layer_computes_the_same_on_either(precision: str) -> None:
    """Equal operands in equal GEMMs: output and gradients agree in every bit, whatever the size."""
    need(precision)
    results = []
    for which in ("emulated", "native"):
        torch.manual_seed(0)
        layer = Linear(50, 70, precision=precision, backend=which, device="cuda")
        x = torch.randn(33, 50, device="cuda", requires_grad=True)
        y = layer(x)
        y.sum().backward()
        results.append((y, x.grad, layer.weight.grad))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
