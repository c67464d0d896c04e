"""In which dtypes a layout stores and computes: what the cell asks for, or a refusal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import nn

from pytest_precision.engine.readable import expect_known
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.precisions import PRECISIONS
from pytest_precision.modules.replace import quantize_linears

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The dtypes by the names of precisions and primary weights; quantized ones are bf16 beside."""

_STATE_DTYPES = {**DTYPES, "fp8": torch.uint8}
MASTERS = ("fp32", "fp16")
MOMENTS = ("fp32", "bf16", "fp16", "fp8")
UNSCALED = ("fp32", "bf16")
"""What masters, moments, and state without a scale can be stored in."""

QUANTIZED = tuple(name for name, precision in PRECISIONS.items() if precision.quantized)


class Known(NamedTuple):
    """What a layout can do.

    Attributes:
        primary_weights: precision to the primary weights that it can be stored in.
        fusion: precisions in which the GEMM can accumulate weight gradients in fp32.
    """

    primary_weights: Mapping[str, tuple[str, ...]]
    fusion: tuple[str, ...] = ()


# AdamW in fp16 would divide by roots of second moments that are 0 there.
_ON_PARAMETERS = {
    "fp32": ("fp32", "bf16"),
    "bf16": ("fp32", "bf16"),
    "fp16": ("fp32",),
    **dict.fromkeys(QUANTIZED, ("fp32", "bf16")),
}
_OR_QUANTIZED = dict.fromkeys(QUANTIZED, ("bf16", "quantized"))
_WITH_MASTERS = {"bf16": ("bf16",), "fp16": ("fp16",), **_OR_QUANTIZED}
_EXPERTS = {"bf16": ("bf16",), **_OR_QUANTIZED}  # their layers compute in bf16

KNOWN = {
    "adamw": Known(_ON_PARAMETERS),
    "any_precision_adamw": Known(_ON_PARAMETERS),
    "ddp": Known(_ON_PARAMETERS),
    "discrete_experts": Known(_EXPERTS, fusion=("bf16", *QUANTIZED)),
    "distributed_optimizer": Known(
        {"fp32": ("fp32",), **_WITH_MASTERS}, fusion=("bf16", *QUANTIZED)
    ),
    "fsdp2": Known(_ON_PARAMETERS),
    "fused_adam": Known({**_ON_PARAMETERS, "fp16": ("fp32", "fp16")}),
    "grouped_experts": Known(_EXPERTS, fusion=("bf16", *QUANTIZED)),
    "master_adamw": Known(_WITH_MASTERS, fusion=("bf16", *QUANTIZED)),
}
"""Which layout knows which precisions, primary weights and fused accumulation."""


def dtypes(cell: Cell, layout: str) -> tuple[torch.dtype, torch.dtype]:
    """Storage dtype of the resident parameters and compute dtype of `cell`.

    Raises:
        ValueError: if `layout` does not do what the cell asks for, so that no cell passes by
            running something else.
    """
    known = KNOWN[layout]
    _expect(cell, layout, "precision", tuple(known.primary_weights))
    _expect(cell, layout, "primary_weight", known.primary_weights[cell.precision])
    fusion = (False, True) if cell.precision in known.fusion else (False,)
    _expect(cell, layout, "grad_accum_fusion", fusion)
    bf16 = torch.bfloat16
    return DTYPES.get(cell.primary_weight, bf16), DTYPES.get(cell.precision, bf16)


def resident(model: nn.Module, cell: Cell, layout: str) -> tuple[nn.Module, torch.dtype]:
    """`model` as `cell` stores and quantizes it, in place, and the dtype that it computes in.

    Buffers stay as the workload made them: rotary frequencies in bf16 are other positions.

    Raises:
        ValueError: as `dtypes`, and as `expect_known`.
    """
    storage, compute = dtypes(cell, layout)
    expect_known(model)
    model = quantize_linears(
        _stored_in(storage, model),
        cell.precision,
        primary_weight=cell.primary_weight,
        fuse_wgrad_accumulation=cell.grad_accum_fusion,
        backend=cell.backend,
    )
    return model, compute


def _stored_in(dtype: torch.dtype, model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    return model


def state_dtype(option: str, name: str, known: tuple[str, ...]) -> torch.dtype:
    """What optimizer state of this name is stored in; fp8 is e4m3 in bytes, with a scale.

    Raises:
        ValueError: for a name that is not one of `known`.
    """
    if name not in known:
        raise ValueError(
            f"expected {option} to be one of {', '.join(known)} but got {option}={name!r} "
            f"({type(name).__name__}); dtypes of optimizer state are given by these names"
        )
    return _STATE_DTYPES[name]


def _expect(cell: Cell, layout: str, axis: str, known: tuple[object, ...]) -> None:
    value = getattr(cell, axis)
    if value not in known:
        where = "" if axis == "precision" else f" in {cell.precision}"
        raise ValueError(
            f"layout {layout} knows {axis} {', '.join(map(str, known))}{where} but the cell has "
            f"{axis}={value!r}; leave it out of the matrix or use another layout"
        )
