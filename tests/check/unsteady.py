"""Layouts that a second run does not repeat, and one that repeats what is wrong."""

from __future__ import annotations

import os
from typing import Any

import torch

from pytest_precision import Cell, Engine


def by_hash(workload: Any, cell: Cell) -> Engine:
    """Begin from weights that the seed of Python's hashes decides."""
    model = workload.model(cell)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + (hash("weight") % 1000) * 2.0**-20)
    return Engine(workload, cell, model, torch.optim.AdamW(workload.groups(model)))


class Restless(Engine):
    """Adds bytes of the system's generator to a weight after each update."""

    def optimizer_step(self) -> None:
        super().optimizer_step()
        with torch.no_grad():
            next(iter(self.model.parameters())).add_(os.urandom(1)[0] * 2.0**-12 + 1)


def restless(workload: Any, cell: Cell) -> Engine:
    """Train with what no run repeats."""
    model = workload.model(cell)
    return Restless(workload, cell, model, torch.optim.AdamW(workload.groups(model)))


class Doubling(Engine):
    """Doubles the gradients in each run."""

    def reduce_grads(self) -> None:
        super().reduce_grads()
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(2)


def doubling(workload: Any, cell: Cell) -> Engine:
    """Train with gradients that are wrong in every run alike."""
    model = workload.model(cell)
    return Doubling(workload, cell, model, torch.optim.AdamW(workload.groups(model)))
