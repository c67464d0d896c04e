"""A training loop of torch's pipelines, a stage for each rank, with one wrong line or none."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

SCHEDULE, WRONG = sys.argv[1], sys.argv[2]
WIDTH = int([*sys.argv, "32"][3])
MICROBATCHES = 4


class Head(nn.Module):
    """The second stage."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(32), nn.Linear(32, 16)

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = self.out(self.norm(hidden))
        if WRONG == "second":
            result = result * 0.5  # second
        return result


class Tail(nn.Module):
    """The first stage."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.between = nn.Linear(16, WIDTH), nn.Linear(WIDTH, 32)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.into(inputs)
        if WRONG == "first":
            hidden = hidden + 0.5  # first
        return nn.functional.gelu(self.between(hidden))


if not dist.is_initialized():  # as in a process of its own
    dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
stages = Tail(), Head()
model = stages[rank]
schedule = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[SCHEDULE](
    PipelineStage(model, rank, 2, torch.device("cpu")), MICROBATCHES, loss_fn=nn.MSELoss()
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(3):
    optimizer.zero_grad()
    inputs = torch.linspace(-1, 1, 8 * 16).reshape(8, 16) * (step + 1)
    if rank == 0:
        schedule.step(inputs)
    else:
        schedule.step(target=inputs)
    optimizer.step()
