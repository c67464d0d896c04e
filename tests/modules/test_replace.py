"""Which linear layers take part, and what replacing them leaves alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_precision import Cell, modules, workloads
from pytest_precision.engine.quantizing import quantized_state
from pytest_precision.workloads.perceptron import Reader


def model(name: str) -> nn.Module:
    made: nn.Module = getattr(workloads, name)().model(Cell()).bfloat16()
    return made


@pytest.mark.parametrize(
    ("workload", "taking_part"),
    [
        ("mlp", ["linear"]),
        ("gpt", ["attention.qkv", "attention.out", "up", "down"]),
        ("moe", [f"experts.{n}.{side}" for n in range(5) for side in ("up", "down")]),
    ],
)
def test_the_linear_layers_of_blocks_take_part(workload: str, taking_part: list[str]) -> None:
    """Not the router, the embedding, a head, or a norm; nor a layer that does something else."""
    quantized = modules.quantize_linears(model(workload), "mxfp8")
    names = [name for name, m in quantized.named_modules() if isinstance(m, modules.Linear)]
    first = [name.removeprefix("blocks.0.") for name in names if name.startswith("blocks.0.")]
    assert first == taking_part
    assert len(names) == len(taking_part) * len(quantized.blocks)


@pytest.mark.parametrize("workload", ["mlp", "gpt", "moe"])
def test_parameters_stay_the_same_objects_under_the_same_names(workload: str) -> None:
    """In the same order, so that parameter groups are the same."""
    made = model(workload)
    before = dict(made.named_parameters())
    after = dict(modules.quantize_linears(made, "nvfp4").named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_unquantized_precisions_leave_a_model_alone(precision: str) -> None:
    """Every module stays what it was."""
    made = model("gpt")
    before = [*made.modules()]
    modules.quantize_linears(made, precision)
    assert [*map(id, made.modules())] == [*map(id, before)]


def test_a_subclass_stays_what_it_is() -> None:
    """It computes something else than a linear layer."""
    made = nn.Sequential(nn.Linear(8, 8), Reader(8, 8))
    modules.quantize_linears(made, "mxfp8")
    assert [type(m) for m in made] == [modules.Linear, Reader]


def test_a_shared_weight_stays_in_high_precision() -> None:
    """Also of two linear layers in a block: quantized, one would not be the other's transpose."""
    made = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    made[0].weight = made[2].weight
    modules.quantize_linears(made, "mxfp8")
    assert [isinstance(m, modules.Linear) for m in made] == [False, True, False]


def test_a_layer_of_two_names_stays_in_high_precision() -> None:
    """It shares its weight with itself; both names go on to mean one layer."""
    layer = nn.Linear(8, 8)
    made = nn.Sequential(layer, nn.Linear(8, 8), nn.ReLU(), layer)
    modules.quantize_linears(made, "mxfp8", primary_weight="quantized")
    assert [type(m) for m in made] == [nn.Linear, modules.Linear, nn.ReLU, nn.Linear]
    assert made[0] is made[3]


@pytest.mark.parametrize("primary", ["bf16", "quantized"])
def test_frozen_parameters_stay_frozen(primary: str) -> None:
    """Each by itself, and a backward leaves them without a gradient, fused too."""
    made = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).bfloat16()
    made[0].weight.requires_grad_(False)
    made[1].bias.requires_grad_(False)
    modules.quantize_linears(made, "mxfp8", primary_weight=primary, fuse_wgrad_accumulation=True)
    made[1].weight.main_grad = torch.zeros(8, 8)
    made(torch.ones(2, 8)).sum().backward()
    trained = [name for name, p in made.named_parameters() if p.requires_grad]
    assert trained == [name for name, p in made.named_parameters() if p.grad is not None]
    assert trained == ["0.bias", "1.weight"]
    assert bool(made[1].weight.main_grad.any())


def test_hooks_and_attributes_of_a_layer_stay() -> None:
    """They were registered on the module, which is still the same one."""
    layer, seen = nn.Linear(8, 8), []
    layer.register_forward_pre_hook(lambda module, _: seen.append(module))
    removed = layer.register_forward_hook(lambda module, *_: seen.append("removed"))
    layer.scope = "mine"
    assert modules.quantize_linears(layer, "mxfp8") is layer
    removed.remove()
    layer(torch.ones(2, 8))
    assert seen == [layer]
    assert (type(layer), layer.scope) == (modules.Linear, "mine")


def test_a_precision_that_is_unknown_leaves_the_model_alone() -> None:
    """Not half of it quantized."""
    made = nn.Sequential(nn.Linear(8, 8))
    with pytest.raises(ValueError, match="but got precision='fp5'"):
        modules.quantize_linears(made, "fp5")
    assert type(made[0]) is nn.Linear
    assert [name for name, _ in made[0].named_children()] == []


@pytest.mark.parametrize(
    ("precision", "primary"), [("mxfp8", "nope"), ("fp32", "quantized"), ("bf16", "quantized")]
)
def test_a_primary_weight_that_a_precision_lacks_is_refused(precision: str, primary: str) -> None:
    """Nothing is taken for another one in silence."""
    words = rf"but got primary_weight=.{primary}. \(str\); {precision} has no others"
    with pytest.raises(ValueError, match=words):
        modules.quantize_linears(nn.Linear(8, 8), precision, primary_weight=primary)


def test_only_modules_are_quantized() -> None:
    """Such as no state dict."""
    with pytest.raises(TypeError, match=r"expected an nn\.Module but got model=\{\} \(dict\)"):
        modules.quantize_linears({}, "mxfp8")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mxfp8", {}), r"an nn\.Linear that can be quantized but got \w+, which has none"),
        (("fp16", {"fuse_wgrad_accumulation": True}), "expected bf16 or a quantized precision"),
    ],
)
def test_what_would_quantize_or_fuse_nothing_is_refused(
    arguments: tuple[str, dict[str, Any]], words: str
) -> None:
    """A cell must not pass by running something else than it says."""
    precision, options = arguments
    with pytest.raises(ValueError, match=words):
        modules.quantize_linears(nn.Sequential(nn.Embedding(3, 4)), precision, **options)


def test_delayed_scaling_is_shown_once_and_moves_once_a_step() -> None:
    """The history of three microbatches is one entry: the largest amax of all."""
    made = modules.quantize_linears(nn.Sequential(nn.Linear(8, 8)).bfloat16(), "fp8_delayed")
    for microbatch, largest in enumerate((3.0, 5.0, 4.0)):
        modules.begin_microbatch(made, 1, microbatch, first=microbatch == 0)
        made(torch.full((2, 8), largest).bfloat16()).sum().backward()
    recorded = {(kind, name): t for kind, name, t in quantized_state(made)}
    assert float(recorded["recorded_amax", "0.quantizers.0.input.history"]) == 5
    modules.finish_step(made)
    shown = {(kind, name): t for kind, name, t in quantized_state(made)}
    assert float(shown["scale", "0.quantizers.0.input"]) == pytest.approx(448 / 5)
    assert float(shown["amax", "0.quantizers.0.input.history"][-1]) == 5
    assert len({id(t) for t in made.buffers()}) == 6
