"""Sides of the soak beyond layouts that patch: scripts with odd loops, and layouts that read files.

A script is told by the cell's `way` what is odd in it; a way that ends in `WRONG` also has another
learning rate, or another decay of its average, than the plain loop, and nothing else.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
from odd_layouts import made
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from pytest_precision import Engine, Workload, script
from pytest_precision.matrix.cell import Cell

WRONG = ", wrong"

CLASSES = ("NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD", "SGD")


class Wrapper(nn.Module):
    """Holds a module under another name."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model

    def forward(self, x: Tensor) -> Tensor:
        """Call the module."""
        output: Tensor = self.inner(x)
        return output


def train(cell: Cell, record: Any, *, is_odd: bool) -> None:
    """Train for ever; what is odd in a loop leaves its numbers alone."""
    kind, _, way = cell.way.removesuffix(WRONG).partition(" ")
    is_wrong = is_odd and cell.way.endswith(WRONG)
    model = nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 1))
    data = torch.randn(7, 5)
    name = way if kind == "optimizer" else "AdamW"
    rate = 0.0101 if is_wrong and kind != "average" else 0.01
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=rate)
    decay = 0.8 if is_wrong else 0.9
    roots: dict[str, nn.Module] = {"": model}
    average = None
    if kind == "average":
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
        roots["average"] = average
    forward: nn.Module = Wrapper(model) if is_odd and kind == "wrapper" else model

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = forward(data).square().mean()
        loss.backward()
        return loss

    with record(roots):
        while True:
            if is_odd and kind == "closure":
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
            if average is not None:
                average.update_parameters(model)


@script
def plain(cell: Cell, record: Any) -> None:
    """Train as everybody does."""
    train(cell, record, is_odd=False)


@script
def odd(cell: Cell, record: Any) -> None:
    """Train in the way that the cell names."""
    train(cell, record, is_odd=True)


def scaled(workload: Workload, cell: Cell, factor: float) -> Engine:
    """Begin with the weights times a factor."""
    model = workload.model(cell)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    return made(Engine, workload, cell, model)


def from_config(workload: Workload, cell: Cell, file: str) -> Engine:
    """Begin with the weights times what a file says."""
    return scaled(workload, cell, float(Path(file).read_text().removeprefix("FACTOR = ")))


def from_helper(workload: Workload, cell: Cell, file: str) -> Engine:
    """Begin with the weights times a constant of a module."""
    factor: float = importlib.import_module(Path(file).stem).FACTOR
    return scaled(workload, cell, factor)
