"""The layouts whose layers and optimizer are Transformer Engine's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pytest_precision.engine.engine import Engine
from pytest_precision.errors import expected_but_got
from pytest_precision.layouts.declarations import uses_transformer_engine
from pytest_precision.layouts.support import computes_in_bf16
from pytest_precision.layouts.transformer_engine.data_parallel import EngineInDdp, EngineInFsdp2
from pytest_precision.layouts.transformer_engine.layers import with_experts, with_linears
from pytest_precision.layouts.transformer_engine.te_masters import OptimizerMasters, OutsideMasters
from pytest_precision.layouts.transformer_engine.transformer_blocks import with_blocks
from pytest_precision.matrix.cell import Cell
from pytest_precision.workloads.base import Workload


@uses_transformer_engine
@computes_in_bf16
def te_linears(
    workload: Workload,
    cell: Cell,
    *,
    masters_in_optimizer: bool = False,
    ddp: bool = False,
    fsdp2: bool = False,
    **adam: Any,
) -> Engine:
    """Set up a model whose blocks have Transformer Engine's `Linear`.

    Args:
        workload: what is trained; the sizes in its blocks are multiples of 32.
        cell: the point of the matrix.
        masters_in_optimizer: whether `FusedAdam` has the masters, or they stand beside the model.
        ddp: whether the model is in `DistributedDataParallel`; `FusedAdam` has the masters then.
        fsdp2: whether `fully_shard` shards it; `FusedAdam` has the masters then, too.
        adam: further options of `OptimizerMasters`, or of `OutsideMasters`.
    """
    model = in_bf16(with_linears(workload.model(cell), cell))
    return _engine(masters_in_optimizer, ddp=ddp, fsdp2=fsdp2)(workload, cell, model, **adam)


@uses_transformer_engine
@computes_in_bf16
def te_experts(
    workload: Workload,
    cell: Cell,
    *,
    single_grouped_weight: bool = False,
    masters_in_optimizer: bool = False,
    **adam: Any,
) -> Engine:
    """Set up a mixture-of-experts model with Transformer Engine's `GroupedLinear` for experts.

    Args:
        workload: what is trained, such as `workloads.moe`.
        cell: the point of the matrix.
        single_grouped_weight: one parameter for all weights of a layer, rather than one per expert.
        masters_in_optimizer: whether `FusedAdam` has the masters, which it cannot have of a single
            grouped weight, or they stand beside the model.
        adam: further options of `OptimizerMasters`, or of `OutsideMasters`.
    """
    model = with_experts(workload.model(cell), cell, single_grouped_weight=single_grouped_weight)
    return _engine(masters_in_optimizer)(workload, cell, in_bf16(model), **adam)


@uses_transformer_engine
@computes_in_bf16
def te_blocks(
    workload: Workload,
    cell: Cell,
    *,
    layer: str = "TransformerLayer",
    masters_in_optimizer: bool = False,
    ddp: bool = False,
    fsdp2: bool = False,
    **adam: Any,
) -> Engine:
    """Set up a transformer of Transformer Engine's layers, with a choice of fused or plain ones.

    Args:
        workload: `workloads.gpt` with a fixed temperature and sizes that are multiples of 32.
        cell: the point of the matrix.
        layer: the largest layer in a block: "TransformerLayer", with unfused attention;
            "LayerNormMLP", after a `LayerNormLinear`; "Linear", after a `LayerNorm`.
        masters_in_optimizer: whether `FusedAdam` has the masters, or they stand beside the model.
        ddp: whether the model is in `DistributedDataParallel`; `FusedAdam` has the masters then.
        fsdp2: whether `fully_shard` shards it; `FusedAdam` has the masters then, too.
        adam: further options of `OptimizerMasters`, or of `OutsideMasters`.
    """
    model = in_bf16(with_blocks(workload.model(cell), cell, layer=layer))
    return _engine(masters_in_optimizer, ddp=ddp, fsdp2=fsdp2)(workload, cell, model, **adam)


def _engine(
    masters_in_optimizer: bool, *, ddp: bool = False, fsdp2: bool = False
) -> Callable[..., Engine]:
    if ddp and fsdp2:
        raise ValueError(expected_but_got("ddp or fsdp2", "both", "choose what reduces gradients"))
    if fsdp2:
        return EngineInFsdp2
    if ddp:
        return EngineInDdp
    return OptimizerMasters if masters_in_optimizer else OutsideMasters


def in_bf16(model: nn.Module) -> nn.Module:
    """Round all fp32 parameters of a model to bf16, in place, except quantized ones."""
    for parameter in model.parameters():
        if type(parameter) is nn.Parameter and parameter.dtype is torch.float32:
            parameter.data = parameter.data.to(torch.bfloat16)
    return model
