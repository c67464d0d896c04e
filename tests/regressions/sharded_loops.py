"""A loop under fully_shard whose optimizer has made its state before the first step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

LR = 1e-4


def train(record: Any, make: Callable[[Any], torch.optim.Optimizer]) -> None:
    """Train two layers, of which the second one is too small for all ranks."""
    model = nn.Sequential(nn.Linear(7, 13), nn.GELU(), nn.Linear(13, 1))
    fully_shard(model)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    optimizer = make([{"params": matrices}, {"params": others, "weight_decay": 0.0}])
    generator = torch.Generator().manual_seed(dist.get_rank())
    with record():
        while True:
            inputs: Tensor = torch.randn(8, 7, generator=generator)
            (model(inputs) - 1).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
