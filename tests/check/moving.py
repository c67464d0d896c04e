"""Layouts whose numbers a test can move, and a constant that both read."""

from __future__ import annotations

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
