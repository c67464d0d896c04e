"""Layouts with grouped expert layers, which have one weight for all experts or one for each."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from pytest_precision.engine.engine import Engine
from pytest_precision.engine.observation import Span
from pytest_precision.errors import expected_but_got
from pytest_precision.layouts.megatron.optimizer_engine import DistributedOptimizer
from pytest_precision.layouts.megatron.packing import Part
from pytest_precision.layouts.megatron.stored_model import Arranged
from pytest_precision.layouts.support import computes_in_bf16
from pytest_precision.matrix.cell import Cell
from pytest_precision.modules.grouped import GroupedLinear
from pytest_precision.modules.linear import Linear
from pytest_precision.modules.parameter import QuantizedParameter
from pytest_precision.workloads.base import Workload
from pytest_precision.workloads.mixture import Expert, Experts, StackedExperts

LAYERS = ("up", "down")


def arrange(model: nn.Module, cell: Cell, *, single_grouped_weight: bool) -> Arranged:
    """Replace the experts of a model, in place, by grouped layers that hold all experts' weights.

    Args:
        model: the model of a workload such as `moe`, which is stored and quantized already.
        cell: the cell that it was stored for.
        single_grouped_weight: one parameter for all weights of a layer, rather than one per expert.

    Raises:
        ValueError: for a model without experts.
    """
    parts: dict[str, tuple[Part, ...]] = {}
    names: dict[str, str] = {}
    named_experts = {
        name: module for name, module in model.named_modules() if isinstance(module, Experts)
    }
    if not named_experts:
        raise ValueError(
            expected_but_got(
                "a model with mixture.Experts",
                f"{type(model).__name__}, which has none",
                "use workloads.moe, or layouts.distributed_optimizer",
            )
        )
    for name, experts in named_experts.items():
        layers = {}
        for which in LAYERS:
            linears = [getattr(cast(Expert, expert), which) for expert in experts]
            logical = [f"{name}.{number}.{which}" for number in range(len(linears))]
            layers[which] = _layer(linears, logical, cell, single_grouped_weight)
            stored = f"{name}.{which}"
            for kind, parameter in linears[0].named_parameters():
                sizes = parameter.numel(), tuple(parameter.shape)
                packed_parts = [
                    _part(f"{logical_name}.{kind}", n, *sizes)
                    for n, logical_name in enumerate(logical)
                ]
                if single_grouped_weight:
                    parts[f"{stored}.{kind}"] = tuple(packed_parts)
                else:
                    parts |= {
                        f"{stored}.{kind}{n}": (part._replace(span=Span(0, sizes[0])),)
                        for n, part in enumerate(packed_parts)
                    }
            for number, logical_name in enumerate(logical):
                names[f"{stored}.weight{number}"] = f"{logical_name}.weight"
                names[f"{stored}.quantizers.{number}"] = f"{logical_name}.quantizers.0"
        model.set_submodule(name, StackedExperts(**layers))
    return Arranged(parts, names)


def _layer(
    linears: list[nn.Linear], logical: list[str], cell: Cell, single_grouped_weight: bool
) -> GroupedLinear:
    """Build one grouped linear layer from the linear layers of all experts."""
    first_linear = linears[0]
    layer = GroupedLinear(
        len(linears),
        first_linear.in_features,
        first_linear.out_features,
        first_linear.bias is not None,
        precision=cell.precision,
        single_grouped_weight=single_grouped_weight,
        device=first_linear.weight.device,
    )
    layer.fuse_wgrad_accumulation = cell.grad_accum_fusion
    layer.streams = logical
    if layer.quantizers:
        layer.quantizers = nn.ModuleList(cast(Linear, linear).quantizers[0] for linear in linears)
    for kind, _ in first_linear.named_parameters():
        each = [linear.get_parameter(kind) for linear in linears]
        if not single_grouped_weight:
            for number, parameter in enumerate(each):
                layer.register_parameter(f"{kind}{number}", parameter)
        else:
            layer.register_parameter(kind, _packed_parameter(each))
    return layer


def _packed_parameter(each: list[nn.Parameter]) -> nn.Parameter:
    """Stack the parameters of all experts into one, from their values before quantization."""
    first_parameter = each[0]
    trained = [parameter.requires_grad for parameter in each]
    if len({*trained}) > 1:
        raise ValueError(
            expected_but_got(
                "all experts of a single weight to be trained, or none of them,",
                f"requires_grad={trained} (list)",
                "use layouts.discrete_experts",
            )
        )
    if not isinstance(first_parameter, QuantizedParameter):
        stacked = torch.stack([parameter.detach() for parameter in each])
        return nn.Parameter(stacked, requires_grad=trained[0])
    many = cast(list[QuantizedParameter], each)
    values = [cast(Tensor, parameter.high_precision_init) for parameter in many]
    packed_quantized_parameter = QuantizedParameter.of(
        torch.stack(values), [parameter.formats[0] for parameter in many]
    )
    return cast(nn.Parameter, packed_quantized_parameter.requires_grad_(trained[0]))


def _part(name: str, number: int, size: int, shape: tuple[int, ...]) -> Part:
    return Part(name, shape, Span(number * size, (number + 1) * size))


@computes_in_bf16
def grouped_experts(workload: Workload, cell: Cell, **options: Any) -> Engine:
    """Set up the distributed optimizer with a single weight `[experts, out, in]` for all experts.

    Args:
        workload: a workload with experts, such as `moe`.
        cell: the point of the matrix.
        **options: as `distributed_optimizer` takes them.

    Raises:
        ValueError: as `distributed_optimizer`, and for a workload without experts.
    """
    return DistributedOptimizer.of(
        workload, cell, partial(arrange, single_grouped_weight=True), **options
    )


@computes_in_bf16
def discrete_experts(workload: Workload, cell: Cell, **options: Any) -> Engine:
    """Set up the distributed optimizer with one weight per expert.

    The layers are those of `grouped_experts`.

    Args:
        workload: a workload with experts, such as `moe`.
        cell: the point of the matrix.
        **options: as `distributed_optimizer` takes them.

    Raises:
        ValueError: as `distributed_optimizer`, and for a workload without experts.
    """
    return DistributedOptimizer.of(
        workload, cell, partial(arrange, single_grouped_weight=False), **options
    )
