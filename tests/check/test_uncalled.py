"""A layout whose forward reads a weight without calling the module that has it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MethodType

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pytest_precision import Cell, Engine, Parity, ParityError, Workload, workloads
from pytest_precision.workloads.perceptron import MlpBlock

ParityIn = Callable[[Cell], Parity]

CELL = Cell("fp32", sequence="train2-eval-train")
NARROW = partial(workloads.mlp, width=17)


def plain(workload: Workload, cell: Cell) -> Engine:
    """Call every module."""
    model = workload.model(cell)
    return Engine(workload, cell, model, torch.optim.AdamW(workload.groups(model)))


def fused(workload: Workload, cell: Cell) -> Engine:
    """Read the weight of each linear layer where a fused kernel would."""

    def forward(self: MlpBlock, x: Tensor) -> Tensor:
        return x + self.scale * F.gelu(F.linear(x, self.linear.weight, self.linear.bias))

    engine = plain(workload, cell)
    for block in engine.model.blocks:  # type: ignore[union-attr]
        block.forward = MethodType(forward, block)
    return engine


def stale(workload: Workload, cell: Cell) -> Engine:
    """Read a copy of the first weights for ever."""
    engine = fused(workload, cell)

    def forward(self: MlpBlock, x: Tensor, weight: Tensor) -> Tensor:
        held = weight + self.linear.weight - self.linear.weight.detach()
        return x + self.scale * F.gelu(F.linear(x, held, self.linear.bias))

    for block in engine.model.blocks:  # type: ignore[union-attr]
        first = block.linear.weight.detach().clone()
        block.forward = MethodType(lambda self, x, first=first: forward(self, x, first), block)
    return engine


def test_the_weight_before_the_step_is_compared(parity_there: ParityIn) -> None:
    """Both ways round the cell is green, and says what was compared instead."""
    for candidate, reference, side in (
        (fused, plain, "candidate"),
        (plain, fused, "reference"),
    ):
        verdict = parity_there(CELL).check(candidate, reference, workload=NARROW)
        told = {k: v for k, v in (verdict.left_out or {}).items() if k.startswith("used_param")}
        assert list(told) == [
            "used_param of blocks.0.linear.weight, blocks.0.linear.bias, blocks.1.linear.weight "
            "and 3 more"
        ]
        assert set(told.values()) == {
            f"no call of its module was seen in the {side}; the weight before the step was "
            "compared instead"
        }


def test_another_weight_that_is_read_is_seen(parity_there: ParityIn) -> None:
    """The resident weight is right, and what the forward makes of a stale copy differs."""
    with pytest.raises(ParityError, match="loss differs at step 2") as failure:
        parity_there(CELL).check(stale, plain, workload=NARROW)
    assert failure.value.verdict.outcome == "fail"
