"""Masters that the optimizer holds instead of the parameters are known by their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_precision import Cell, audit, layouts, workloads

Rules = Callable[..., dict[str, str]]


def masters(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().float().requires_grad_() for parameter in model.parameters()]


def test_copies_in_fp32(model: nn.Module) -> None:
    """AdamW on bf16 parameters would be an error; on their masters it is right."""
    model.bfloat16()
    found = audit(model, torch.optim.AdamW(masters(model)))
    assert found.at_least("warning") == []
    assert {row.master for row in found.rows} == {"fp32 in the optimizer's groups"}


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_flat_partitions(model: nn.Module, rules: Rules, parts: int) -> None:
    """One flat master, padded, and cut without regard to parameters, as ZeRO does."""
    model.bfloat16()
    flat = torch.cat([*[own.flatten() for own in masters(model)], torch.zeros(7)]).detach()
    cut = [part.clone().requires_grad_() for part in flat.tensor_split(parts)]
    assert rules(model, torch.optim.AdamW(cut)) == {}


def test_masters_of_another_model(model: nn.Module, rules: Rules) -> None:
    """The shapes are right, the values are not."""
    model.bfloat16()
    own = masters(model)
    with torch.no_grad():
        own[0] += 0.5
    assert rules(model, torch.optim.AdamW(own)) == {"foreign-parameters": "error"}


def test_stale_masters(model: nn.Module, rules: Rules) -> None:
    """A checkpoint of the model alone leaves them behind, and the next step undoes it."""
    model.bfloat16()
    own = masters(model)
    for parameter, master in zip(model.parameters(), own, strict=True):
        parameter.main_param = master  # type: ignore[attr-defined]  # as Megatron does
    optimizer = torch.optim.AdamW(own)
    assert rules(model, optimizer) == {}
    model.load_state_dict({name: own + 1 for name, own in model.state_dict().items()})
    assert rules(model, optimizer) == {"stale-master": "error"}


def test_masters_in_bf16_are_none(model: nn.Module, rules: Rules) -> None:
    """DeepSpeed keeps such with `bf16_master_weights_and_grads`."""
    model.bfloat16()
    flat = torch.cat([own.bfloat16().flatten() for own in masters(model)]).detach()
    optimizer = torch.optim.AdamW([flat.requires_grad_()])
    assert rules(model, optimizer) == {"update-below-fp32": "error"}


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    ("precision", "stored", "options"),
    [
        ("fp32", "fp32", {}),
        ("bf16", "bf16", {}),
        ("bf16", "bf16", {"store_param_remainders": True}),
        ("mxfp8", "quantized", {}),
    ],
    ids=["fp32", "bf16", "remainders", "mxfp8"],
)
def test_megatrons_distributed_optimizer(
    rules: Rules, precision: str, stored: str, options: Any
) -> None:
    """Its shards are masters of runs of its buffers."""
    cell = Cell(precision=precision, primary_weight=stored)
    engine = layouts.distributed_optimizer(workloads.mlp(), cell, **options)
    assert rules(engine.model, engine.optimizer) == {}
