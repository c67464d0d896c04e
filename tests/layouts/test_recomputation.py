"""Activation recomputation: what backward computes again is what the forward computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pytest_precision import Cell, Parity, layouts
from pytest_precision.layouts.compute import ComputeIn
from pytest_precision.workloads.language_model import Gpt, LanguageModel


class Recomputing(LanguageModel):
    """A transformer that keeps only the inputs of its blocks for backward."""

    use_reentrant = False

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Recomputed(Gpt):
    """`gpt` as the cell's axis `recompute` says: no, reentrant or not_reentrant."""

    def model(self, cell: Cell) -> nn.Module:
        model = super().model(cell)
        if cell.recompute != "no":
            model.__class__ = Recomputing
            model.use_reentrant = cell.recompute == "reentrant"
        return model


IN_CI = [("ddp", 2, "reentrant"), ("fsdp2", 2, "not_reentrant")]
"""The other ways repeat them: both ways are among those, and layouts that keep and that gather
weights."""


@pytest.mark.parametrize(
    ("layout", "ranks", "recompute"),
    [
        pytest.param(*layout, way, marks=() if (*layout, way) in IN_CI else pytest.mark.nightly)
        for layout in (("adamw", 1), ("fused_adam", 1), ("ddp", 2), ("fsdp2", 2))
        for way in ("reentrant", "not_reentrant")
    ],
)
def test_recomputation_leaves_the_numbers_alone(
    parity_there: Callable[[Cell], Parity], layout: str, ranks: int, recompute: str
) -> None:
    """Blocks are called again in backward, on fp32 storage in bf16 there too."""
    cell = Cell("bf16", "fp32", False, "train2", ranks, (("recompute", recompute),))
    made = getattr(layouts, layout)
    parity_there(cell).check(
        made, made, workload=Recomputed, reference_cell=cell.replace(recompute="no")
    )


class Tied(nn.Module):
    """A module that reads one parameter under two names, one of them in a part of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(3, 3, bias=False)
        self.weight = self.part.weight

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        def region(x: Tensor) -> Tensor:
            return self.part(x) @ self.weight

        return {"out": checkpoint(region, x, use_reentrant=False)}


def test_behind_backward_parameters_are_the_stored_ones() -> None:
    """Whatever name they are found under; the optimizer and the next forward read them there."""
    module = Tied()
    stored = module.part.weight
    ComputeIn(module, torch.bfloat16)(torch.ones(2, 3).bfloat16())["out"].sum().backward()
    assert module.part.weight is module.weight is stored
    assert stored.grad is not None
    assert stored.grad.dtype == torch.float32
