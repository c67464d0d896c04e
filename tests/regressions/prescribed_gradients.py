"""Gradients that are given and not computed: what two optimizers make of them can be compared.

Where gradients come from rounded weights, one weight that rounds another way changes all gradients
after it; after 100 steps, that is ten times what the optimizers themselves differ by.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from one_step import finish_step
from torch import Tensor, nn

from pytest_precision import Cell, Engine, Workload
from pytest_precision.layouts import pure

Layout = Callable[[Workload, Cell], Engine]

ROWS, COLUMNS = 400, 500

SEED = 1


class Matrix(nn.Module):
    """One matrix, whose inner product with the input is the output."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.randn(ROWS, COLUMNS) / COLUMNS**0.5
        self.weight = nn.Parameter(weight.bfloat16().float())

    def forward(self, direction: Tensor) -> Tensor:
        return (self.weight.float() * direction).sum()


class Prescribed(Workload):
    """200 thousand weights whose gradient at each step is a trend and noise, both in bf16.

    Args:
        lr: learning rate, constant.
    """

    max_norm = None

    def __init__(self, lr: float) -> None:
        self.lr = lr
        self.trend = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))

    def model(self, cell: Cell) -> nn.Module:
        return Matrix().to(cell.device)

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        return [{"params": list(model.parameters()), "lr": self.lr, "weight_decay": 0.01}]

    def microbatches(self, cell: Cell, step: int) -> list[Tensor]:
        noise = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(step))
        return [(self.trend + noise).bfloat16().float().to(cell.device)]

    def tokens(self, microbatch: Tensor) -> int:
        return 1

    def loss(self, model: nn.Module, microbatch: Tensor) -> tuple[Tensor, int]:
        return model(microbatch), 1


def weights(layout: Layout, lr: float, cell: Cell, steps: int) -> Tensor:
    """The effective weights after some train steps, fp32; to be called on a rank."""
    torch.manual_seed(SEED)
    engine = layout(Prescribed(lr), cell)
    for step in range(1, steps + 1):
        engine.forward_backward(step)
        finish_step(engine)
    ((_, parameter),) = engine.masters()
    return engine.effective(parameter).detach().float().clone()


@pure
def update_error(candidate: Layout, reference: Layout, lr: float, cell: Cell, steps: int) -> float:
    """Norm of what the candidate's weights are off by, over that of the reference's total update.

    To be called on a rank.
    """
    trained = partial(weights, lr=lr, cell=cell)
    start, end = trained(reference, steps=0), trained(reference, steps=steps)
    error = trained(candidate, steps=steps) - end
    return float(error.norm() / (end - start).norm())
