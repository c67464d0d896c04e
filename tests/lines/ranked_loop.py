"""A training loop on several ranks, in a wrapper of torch's, with one wrong line or none."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

WRAPPER, WRONG = sys.argv[1], sys.argv[2]

if not dist.is_initialized():  # as in a process of its own
    dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (dist.get_world_size(),))

torch.manual_seed(1)
model: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
if WRAPPER == "ddp":
    size = 1e-4 if WRONG == "bucket" else 25.0  # of which the first step takes no notice
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=size)
elif WRAPPER == "fsdp1":
    model = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
elif WRAPPER == "fsdp2":
    fully_shard(model)
elif WRAPPER == "tensor":
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

for step in range(2):
    optimizer.zero_grad()
    inputs = torch.ones(8, 16) * (step + 1 if WRAPPER == "tensor" else step + rank + 1)
    loss = nn.functional.mse_loss(model(inputs), inputs)
    if WRONG == "loss":
        loss = loss * 0.5  # loss
    loss.backward()  # type: ignore[no-untyped-call]
    halved = WRONG == "gradient" or (WRONG == "rank" and rank == 1)
    for parameter in model.parameters() if halved else ():
        gradient = parameter.grad
        if gradient is not None:  # of FSDP1, a rank may have none
            gradient.mul_(0.5)  # gradient, rank
    norm = 1e-4 if WRONG == "clip" else 1e-3
    nn.utils.clip_grad_norm_(model.parameters(), norm)  # clip
    optimizer.step()
    if WRONG == "step":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(parameter.bfloat16())  # step
