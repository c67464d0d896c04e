"""A loop that saves and is resumed, as people write it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import unchanged
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from pytest_precision import Cell, script

POSITION = {"steps": 0}


def train(record: Any, planted: str, *, resume: bool) -> None:
    """Train without end, from the start or from a checkpoint."""
    model = DistributedDataParallel(unchanged.Net())
    optimizer = unchanged.adamw(model)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=8)
    data = torch.Generator().manual_seed(dist.get_rank())
    rows = DistributedSampler(range(10))
    held = {"model": model, "optimizer": optimizer, "schedule": schedule}
    file = record.folder / f"rank{dist.get_rank()}.pt"
    if resume:
        saved = torch.load(file)
        for name in held:
            if name not in planted:
                held[name].load_state_dict(saved[name])
        if planted == "position in a global":
            for _ in range(POSITION["steps"]):
                torch.randn(10, 7, generator=data)
        else:
            data.set_state(saved["data"])
        torch.set_rng_state(saved["rng"])
        rows.set_epoch(saved["epoch"])
    step = 0
    with record():
        while True:
            rows.set_epoch(rows.epoch + 1)
            inputs = torch.randn(10, 7, generator=data)[[*rows]]
            nn.functional.dropout(model(inputs), 0.1).square().mean().backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            if planted == "position in a global":
                POSITION["steps"] = step
            if step == record.save_after and planted != "save":
                states = {name: one.state_dict() for name, one in held.items()}
                states |= {"data": data.get_state(), "rng": torch.get_rng_state()}
                states["epoch"] = rows.epoch
                torch.save(states, file)


def resumed(cell: Cell, record: Any, planted: str = "") -> None:
    """The loop, once more in new state."""
    train(record, planted, resume=True)


@script(resume=resumed)
def trainer(cell: Cell, record: Any, planted: str = "") -> None:
    """The loop from its start."""
    train(record, planted, resume=False)
