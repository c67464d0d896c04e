"""GroupedLinear: discrete and single grouped weights are one computation."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from surroundings import foreign_at_night
from torch import Tensor

from pytest_precision import modules
from pytest_precision.engine.quantizing import quantized_state, used_quantized
from pytest_precision.matrix.precisions import PRECISIONS
from pytest_precision.modules import GroupedLinear, QuantizedParameter

PRECISION_NAMES = ["bf16", *(name for name, precision in PRECISIONS.items() if precision.quantized)]
CASES = [("bf16", "bf16"), *product(PRECISION_NAMES[1:], ("bf16", "quantized"))]
EXPERTS, IN, OUT = 4, 29, 41
COUNTS = [7, 0, 19, 3]


def grouped(precision: str, *, single: bool, primary: str = "bf16") -> GroupedLinear:
    """One with the same values whichever way they are stored."""
    layer = GroupedLinear(
        EXPERTS,
        IN,
        OUT,
        precision=precision,
        single_grouped_weight=single,
        device="cpu",
        dtype=torch.bfloat16,
    )
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(EXPERTS, OUT, IN, generator=generator) / 5
    biases = torch.randn(EXPERTS, OUT, generator=generator)
    with torch.no_grad():
        for kind, values in (("weight", weights), ("bias", biases)):
            if single:
                layer.get_parameter(kind).copy_(values)
            else:
                for expert, value in enumerate(values):
                    layer.get_parameter(f"{kind}{expert}").copy_(value)
    if primary == "quantized":
        formats = [quantizers.weight for quantizers in layer.quantizers]
        names = ["weight"] if single else [f"weight{expert}" for expert in range(EXPERTS)]
        for place, name in enumerate(names):
            own: Any = formats if single else formats[place]
            setattr(layer, name, QuantizedParameter.of(layer.get_parameter(name), own))
    return layer


def stacked(layer: GroupedLinear, tensors: dict[str, Tensor], kind: str) -> Tensor:
    if layer.single_grouped_weight:
        return tensors[kind]
    return torch.stack([tensors[f"{kind}{expert}"] for expert in range(EXPERTS)])


def run(layer: GroupedLinear, microbatches: int = 2) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    seen = {}
    for microbatch in range(microbatches):
        modules.begin_microbatch(layer, 1, microbatch, first=microbatch == 0)
        x = torch.randn(sum(COUNTS), IN, generator=generator).bfloat16().requires_grad_()
        y = layer(x, COUNTS)
        y.backward(torch.randn(y.shape, generator=generator).bfloat16())
        seen |= {f"y{microbatch}": y.detach(), f"dx{microbatch}": x.grad}
    modules.finish_step(layer)
    gradients = {name: p.grad for name, p in layer.named_parameters()}
    return seen | {kind: stacked(layer, gradients, kind) for kind in ("weight", "bias")}


@foreign_at_night
@pytest.mark.parametrize(("precision", "primary"), CASES)
def test_discrete_and_single_grouped_weights_are_the_same_bits(
    precision: str, primary: str
) -> None:
    """Outputs, gradients, the operands used, and the state that outlives the step."""
    one, many = (grouped(precision, single=single, primary=primary) for single in (True, False))
    ours, theirs = run(one), run(many)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    for shown in (used_quantized, quantized_state):
        pairs = zip(sorted_by_name(shown(one)), sorted_by_name(shown(many)), strict=True)
        assert all(a[:-1] == b[:-1] and torch.equal(a[-1], b[-1]) for a, b in pairs)


def sorted_by_name(shown: Any) -> list[Any]:
    return sorted(shown, key=lambda entry: entry[:-1])


@pytest.mark.parametrize("precision", PRECISION_NAMES)
def test_each_expert_is_a_linear_layer(precision: str) -> None:
    """Its tokens are quantized by themselves, whoever stands beside them."""
    layer = grouped(precision, single=False)
    seen = run(layer, 1)
    x, start = torch.randn(sum(COUNTS), IN, generator=torch.Generator().manual_seed(1)), 0
    for expert, count in enumerate(COUNTS):
        alone = modules.Linear(IN, OUT, precision=precision, dtype=torch.bfloat16)
        alone.weight, alone.bias = (
            layer.get_parameter(f"{kind}{expert}") for kind in ("weight", "bias")
        )
        y = alone(x[start : start + count].bfloat16())
        assert torch.equal(y, seen["y0"][start : start + count])
        start += count


@foreign_at_night
@settings(max_examples=20)
@given(counts=st.lists(st.integers(0, 40), min_size=EXPERTS, max_size=EXPERTS))
def test_however_tokens_are_spread_both_compute_the_same(counts: list[int]) -> None:
    """Also where all experts but one are idle, or all of them."""
    x = torch.randn(sum(counts), IN, generator=torch.Generator().manual_seed(2)).bfloat16()
    results = []
    for single in (True, False):
        layer, tokens = grouped("mxfp8", single=single), x.clone().requires_grad_()
        layer(tokens, counts).float().square().sum().backward()
        gradients = {name: p.grad for name, p in layer.named_parameters()}
        results.append([tokens.grad, *(stacked(layer, gradients, k) for k in ("weight", "bias"))])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("single", [True, False])
def test_an_idle_expert_has_a_gradient_of_zeros(single: bool) -> None:
    """Not a missing one, and not what happened to be in memory."""
    seen = run(grouped("nvfp4", single=single))
    assert not seen["weight"][1].any()
    assert not seen["bias"][1].any()
    assert bool(seen["weight"][[0, 2, 3]].flatten(1).any(1).all())


@foreign_at_night
@pytest.mark.parametrize(("precision", "primary"), CASES)
def test_fused_gradients_of_both_are_the_same_bits(precision: str, primary: str) -> None:
    """In fp32 buffers, with poison for autograd; an idle expert's buffer stays as it was."""
    sums = []
    for single in (True, False):
        layer = grouped(precision, single=single, primary=primary)
        layer.fuse_wgrad_accumulation = True
        weights = {name: p for name, p in layer.named_parameters() if "weight" in name}
        for weight in weights.values():
            weight.main_grad = torch.full(weight.shape, 0.5)
        run(layer)
        assert all(bool(weight.grad.isnan().all()) for weight in weights.values())
        assert all(weight.grad_added_to_main_grad for weight in weights.values())
        sums.append(stacked(layer, {n: w.main_grad for n, w in weights.items()}, "weight"))
    assert torch.equal(*sums)
    assert bool((sums[0][1] == 0.5).all())


@pytest.mark.parametrize(
    "counts", [[7, 0, 19], [7, 0, 19, 4], [-7, 14, 19, 3], [7.0, 0.0, 19.0, 3.0], "7abc"]
)
def test_counts_that_do_not_fit_are_refused(counts: Any) -> None:
    """Tokens would go to the wrong expert."""
    with pytest.raises(ValueError, match="expected 4 counts whose sum is 29 but got counts="):
        grouped("mxfp8", single=True)(torch.zeros(29, IN), counts)


@pytest.mark.parametrize("counts", [COUNTS, torch.tensor(COUNTS), tuple(COUNTS)])
def test_counts_are_integers_of_any_kind(counts: Any) -> None:
    """As a router counts them."""
    layer, x = grouped("mxfp8", single=True), torch.ones(sum(COUNTS), IN)
    assert torch.equal(layer(x, counts), layer(x, COUNTS))


def test_tokens_of_another_length_are_refused() -> None:
    """And those that are not in one row each."""
    for shape in ((29, IN + 1), (1, 29, IN)):
        with pytest.raises(ValueError, match=r"expected x of shape \[tokens, 29\] but got"):
            grouped("bf16", single=True)(torch.zeros(shape), COUNTS)


@pytest.mark.parametrize("experts", [0, -1])
def test_a_layer_has_experts(experts: int) -> None:
    """Without any it has no parameter."""
    with pytest.raises(ValueError, match=f"at least one expert but got experts={experts}"):
        GroupedLinear(experts, IN, OUT, precision="mxfp8")
