"""Gradients that a workload does not give, for both sides of a check: each twice, or none."""

from __future__ import annotations

from types import MappingProxyType

import torch

from pytest_precision import Cell, Engine, Workload
from pytest_precision.layouts import resident


class Doubling(Engine):
    """Multiplies each gradient by 2."""

    def forward_backward(self, step: int) -> None:
        """Train the step's microbatches."""
        super().forward_backward(step)
        for weight in self.model.parameters():
            if weight.grad is not None:
                weight.grad.mul_(2)


class MeansUnseen(Engine):
    """Averages over the ranks, and does not show what each rank gives."""

    unobservable = MappingProxyType({"grad": "it is reduced inside backward"})

    def reduce_grads(self) -> None:
        """Average the gradients."""
        super().reduce_grads()
        for weight in self.model.parameters():
            if weight.grad is not None:
                weight.grad.div_(self.cell.world_size)


def engine_of(workload: Workload, cell: Cell, *, kind: type[Engine], again: bool = False) -> Engine:
    """AdamW by an engine of another class; `again` gives the other side another name."""
    model, _ = resident(workload.model(cell), cell)
    return kind(workload, cell, model, torch.optim.AdamW(workload.groups(model)))


def frozen(workload: Workload, cell: Cell, *, again: bool = False) -> Engine:
    """AdamW on a model whose head is not trained."""
    model = workload.model(cell)
    model.get_submodule("head").requires_grad_(False)
    return Engine(workload, cell, model, torch.optim.AdamW(workload.groups(model)))
