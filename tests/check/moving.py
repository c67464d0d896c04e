"""Layouts whose numbers a test can move, and a constant that both read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pytest_precision import Cell, Engine


def made(workload: Any, cell: Cell, decay: float) -> Engine:
    """AdamW with a decay of the second moment."""
    model = workload.model(cell)
    adam = torch.optim.AdamW(workload.groups(model), betas=(0.9, decay))
    return Engine(workload, cell, model, adam)


def made_too(workload: Any, cell: Cell, decay: float) -> Engine:
    """Do the same in another layout."""
    return made(workload, cell, decay)


def made_elsewhere(workload: Any, cell: Cell, runs: str) -> Engine:
    """Do the same with another decay in each run but the first, which a file counts."""
    with Path(runs).open("a") as file:
        file.write("1")
        first = file.tell() == 1
    return made(workload, cell, 0.95 if first else 0.9)
