"""The layout of most training scripts: fp32 parameters, and a forward inside `torch.autocast`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pytest_precision.engine.engine import Engine
from pytest_precision.layouts.dtypes import DTYPE_OF_NAME
from pytest_precision.layouts.support import supports
from pytest_precision.matrix.cell import Cell
from pytest_precision.workloads.base import Workload


class InAutocast(nn.Module):
    """Calls a module inside `torch.autocast`, which chooses a dtype for each operator."""

    def __init__(self, module: nn.Module, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.module = module
        self.device = device
        self.dtype = dtype

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module; the backward runs outside, as torch advises."""
        with torch.autocast(self.device, dtype=self.dtype):
            return self.module(*args, **kwargs)


@supports({"bf16": ["fp32"], "fp16": ["fp32"]})
def autocast(workload: Workload, cell: Cell) -> Engine:
    """Set up `torch.optim.AdamW` on fp32 parameters, with every forward inside `torch.autocast`.

    Products are in the precision of the cell; norms, softmax and sums stay in fp32, where torch's
    table of operators says so. With fp16 the loss is scaled dynamically.
    """
    model = workload.model(cell)
    optimizer = torch.optim.AdamW(workload.groups(model))
    forward = InAutocast(model, cell.device, DTYPE_OF_NAME[cell.precision])
    return Engine(workload, cell, model, optimizer, forward_model=forward)
