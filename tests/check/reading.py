"""Layouts and a script whose numbers come from outside: from arguments, files and modules."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import file_sources
import other_sources
import torch

from pytest_precision import Engine

SCRIPT = """\
import torch

torch.manual_seed(0)
lr = {lr}
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 3)).square().mean().backward()
    optimizer.step()
"""


def scaled(workload: Any, cell: Any, factor: float) -> Engine:
    """AdamW from weights that are multiplied first."""
    model = workload.model(cell)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    return Engine(workload, cell, model, torch.optim.AdamW(workload.groups(model)))


def from_helper(workload: Any, cell: Any, file: str) -> Engine:
    """The factor is a constant of a module that is found in `sys.path`."""
    return scaled(workload, cell, importlib.import_module(Path(file).stem).FACTOR)


SOURCES = file_sources.SOURCES | other_sources.SOURCES


def from_source(workload: Any, cell: Any, name: str, folder: str) -> Engine:
    """The factor is what a source says now."""
    return scaled(workload, cell, float(SOURCES[name].read(Path(folder))))
