"""Transformer Engine's linear layers in place of a model's own, with rows padded to whole blocks.

Transformer Engine itself is imported where it is used: on the CPU, the stand-in for its kernels has
to be there first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pytest_precision.errors import expected_but_got
from pytest_precision.layouts.transformer_engine.backward_bits import give_bits
from pytest_precision.layouts.transformer_engine.kernels_there import (
    recipe_of,
    skip_without_single_weights,
)
from pytest_precision.matrix.cell import Cell
from pytest_precision.modules.rng import RoundingRng
from pytest_precision.workloads.mixture import Expert, Experts, StackedExperts

_WEIGHT = re.compile(r"weight\d*|fc\d_weight")

PADDED_ROWS = 32
"""Rows of each weight's input are padded to a multiple, which is a whole block of each recipe."""

SINGLE_PARAMETER = "NVTE_GROUPED_LINEAR_SINGLE_PARAM"
"""Without this variable, Transformer Engine makes discrete weights in place of a single one."""


class EngineLayer(NamedTuple):
    """One module of Transformer Engine, and its parameters' names in the original model.

    Attributes:
        layer: the module.
        logical: from the name of each of its parameters to the name in the workload's model.
    """

    layer: Any
    logical: Mapping[str, tuple[str, ...]]

    @property
    def weights(self) -> list[tuple[str, tuple[str, ...]]]:
        """The names of the weights of a module's GEMMs, in the module and in the original model."""
        named = self.logical.items()
        return [(te_name, names) for te_name, names in named if _WEIGHT.fullmatch(te_name)]


class Padded(nn.Module):
    """A wrapper of Transformer Engine's modules that pads their input rows with zeros.

    Attributes:
        logical: the names of its parameters in it, to those in the workload's model; several where
            one parameter holds the weights of several experts.
        parts: the modules in it.
        first: whether the next forward quantizes the weights anew, as the first of a step has to.
        step: number of the train step of the next forward.
        microbatch: its number among those of all ranks.
    """

    logical: Mapping[str, tuple[str, ...]]
    parts: Sequence[EngineLayer]

    def __init__(self) -> None:
        super().__init__()
        self.first = True
        self.step = self.microbatch = 0


class PaddedLayer(Padded):
    """A padded `Linear` or `GroupedLinear` of Transformer Engine.

    Attributes:
        layer: the layer itself.
        streams: the names of its linear layers in the workload's model, and of their random bits.
        is_grouped: whether several weights are one parameter.
    """

    def __init__(self, layer: Any, logical: Sequence[str]) -> None:
        super().__init__()
        self.layer = layer
        self.streams = logical
        self.is_grouped = len(logical) > 1 and isinstance(
            getattr(layer, "weight", None), nn.Parameter
        )
        logical_names: dict[str, tuple[str, ...]] = {}
        for kind in ("weight", "bias"):
            names = tuple(f"{name}.{kind}" for name in logical)
            if isinstance(getattr(layer, kind, None), nn.Parameter):
                logical_names[kind] = names
            elif hasattr(layer, f"{kind}0"):
                logical_names |= {f"{kind}{number}": (name,) for number, name in enumerate(names)}
        self.parts = [EngineLayer(layer, logical_names)]
        self.logical = {f"layer.{name}": names for name, names in logical_names.items()}

    def forward(self, rows: Tensor, load: Sequence[int] | None = None) -> Tensor:
        """Multiply each weight's rows, padded with zeros, by the weight; cut the padding off.

        Args:
            rows: [..., in], sorted by weight.
            load: number of rows per weight; a layer with one weight has all of them.
        """
        flat_tensor = rows.reshape(-1, rows.shape[-1])
        shares = [len(flat_tensor)] if load is None else list(load)
        padded = [-(-share // PADDED_ROWS) * PADDED_ROWS for share in shares]
        if load is None:
            x = F.pad(flat_tensor, (0, 0, 0, padded[0] - shares[0]))
            output: Tensor = self.layer(x, is_first_microbatch=self.first)[: shares[0]]
        else:
            parts = zip(torch.split(flat_tensor, shares), shares, padded, strict=True)
            x = torch.cat([F.pad(part, (0, 0, 0, whole - share)) for part, share, whole in parts])
            splits = torch.tensor(padded, device="cuda")
            y = self.layer(x, splits, is_first_microbatch=self.first)
            padded_outputs = zip(torch.split(y, padded), shares, strict=True)
            output = torch.cat([part[:share] for part, share in padded_outputs])
        if torch.is_grad_enabled():
            rngs = [RoundingRng(stream, self.step, self.microbatch) for stream in self.streams]
            give_bits(self.layer, rngs, shares, grouped=self.is_grouped)
        return output.reshape(*rows.shape[:-1], output.shape[-1])


class InEngineAutocast(nn.Module):
    """Wraps a model to run in Transformer Engine's `autocast`."""

    def __init__(self, model: nn.Module, precision: str) -> None:
        super().__init__()
        self.model = model
        self.recipe = recipe_of(precision)
        self._padded = [*padded_modules(model)]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model in `autocast`, which ends before the backward, as the library advises."""
        engine = import_module("transformer_engine.pytorch")
        with nullcontext() if self.recipe is None else engine.autocast(recipe=self.recipe):
            result = self.model(*args, **kwargs)
        for padded in self._padded:
            padded.first = False
        return result


def padded_modules(model: nn.Module) -> Iterator[Padded]:
    """Yield the padding wrappers of Transformer Engine's modules in a model."""
    return (module for module in model.modules() if isinstance(module, Padded))


def with_linears(model: nn.Module, cell: Cell) -> nn.Module:
    """Replace each `nn.Linear` of a model's blocks by Transformer Engine's, in place.

    Raises:
        ValueError: no layer has sizes that are multiples of 32.
    """
    named = [
        (name, module)
        for name, module in model.named_modules()
        if type(module) is nn.Linear and name.startswith("blocks.")
    ]
    for name, linear in named:
        expect_sizes(name, linear)
        layer = _layer(cell, "Linear", [linear], linear.in_features, linear.out_features)
        model.set_submodule(name, PaddedLayer(layer, [name]))
    expect_some(named, model, "an nn.Linear in `blocks`")
    return model


def with_experts(model: nn.Module, cell: Cell, *, single_grouped_weight: bool) -> nn.Module:
    """Replace all experts of a model by Transformer Engine's grouped layers, in place.

    Args:
        model: the model of a workload such as `moe`.
        cell: the layers store and accumulate as it says.
        single_grouped_weight: one parameter for all weights of a layer, rather than one per expert.

    Raises:
        ValueError: for a model without experts, or with sizes that are no multiples of 32.
        pytest.skip.Exception: the GPU has no kernels for a single weight.
    """
    if single_grouped_weight:
        os.environ[SINGLE_PARAMETER] = "1"
        skip_without_single_weights(cell.precision)
    named_experts = [
        (name, module) for name, module in model.named_modules() if isinstance(module, Experts)
    ]
    for name, experts in named_experts:
        layers = {}
        for which in ("up", "down"):
            linears = [getattr(expert, which) for expert in experts if isinstance(expert, Expert)]
            first = linears[0]
            expect_sizes(f"{name}.0.{which}", first)
            layer = _layer(
                cell,
                "GroupedLinear",
                linears,
                len(linears),
                first.in_features,
                first.out_features,
                single_grouped_weight=single_grouped_weight,
                use_grouped_tensor=single_grouped_weight,
            )
            logical = [f"{name}.{number}.{which}" for number in range(len(linears))]
            layers[which] = PaddedLayer(layer, logical)
        model.set_submodule(name, StackedExperts(**layers))
    expect_some(named_experts, model, "mixture.Experts")
    return model


def _layer(cell: Cell, kind: str, linears: Sequence[nn.Linear], *sizes: int, **options: Any) -> Any:
    """Make a layer of Transformer Engine from the unrounded weights of linear layers."""
    weights = iter([linear.weight.detach() for linear in linears])

    @torch.no_grad()
    def initial(weight: Tensor) -> None:
        weight.copy_(next(weights))

    engine = import_module("transformer_engine.pytorch")
    with primary_weights(cell):
        layer = getattr(engine, kind)(
            *sizes,
            bias=linears[0].bias is not None,
            params_dtype=torch.bfloat16,
            init_method=initial,
            fuse_wgrad_accumulation=cell.grad_accum_fusion,
            **options,
        )
    for parameter in layer.parameters():
        parameter.requires_grad_(linears[0].weight.requires_grad)
    if linears[0].bias is not None:
        names = ["bias"] if kind == "Linear" else [f"bias{n}" for n in range(len(linears))]
        for name, linear in zip(names, linears, strict=True):
            layer.get_parameter(name).data.copy_(linear.bias.data)
    return layer


def primary_weights(cell: Cell) -> AbstractContextManager[Any]:
    """Return a context in which new layers quantize weights if `cell.primary_weight` says so."""
    if cell.primary_weight != "quantized":
        return nullcontext()
    engine = import_module("transformer_engine.pytorch")
    context: AbstractContextManager[Any] = engine.quantized_model_init(
        recipe=recipe_of(cell.precision), preserve_high_precision_init_val=True
    )
    return context


def expect_sizes(name: str, linear: nn.Linear) -> None:
    """Raise ValueError for a linear layer with an input or output size that 32 does not divide."""
    if linear.in_features % PADDED_ROWS or linear.out_features % PADDED_ROWS:
        raise ValueError(
            expected_but_got(
                f"sizes that are multiples of {PADDED_ROWS}",
                f"{name} of {linear.in_features} x {linear.out_features}",
                "give the workload another width",
            )
        )


def expect_some(layers: Sequence[Any], model: nn.Module, layer_kind: str) -> None:
    """Raise ValueError if Transformer Engine's layers can replace no layer of the model."""
    if not layers:
        raise ValueError(
            expected_but_got(
                f"a model with {layer_kind}",
                f"{type(model).__name__}, which has none",
                "use another workload",
            )
        )
