"""Many jobs with device meshes of their own on the same ranks: what stays open, and what grows.

    python ci/bench/meshes.py [--jobs 200] [--ranks 4]

Each job trains a little with FSDP2 and tensor parallelism on a mesh that no job before it had. The
exit status is 1 if a rank has more open after them than after the first, or if its memory grew.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from measure import status
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from pytest_precision.ranks import RankPool

WARM = 20
"""Jobs after which caches that do not depend on meshes are full."""
GROWTH_MB = 4.0
"""What allocators keep; one job's groups and their threads take more than half of it."""


def train(number: int) -> float:
    """Trains two steps on a mesh whose names say the number of the job."""
    names = f"data{number}", f"tensor{number}"
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=names)
    model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 16))
    split = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    parallelize_module(model, mesh[names[1]], split)
    fully_shard(model, mesh=mesh[names[0]])
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        loss = model(torch.ones(4, 16)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def held() -> tuple[dict[str, int], float]:
    """What this rank has open, and its memory in MB."""
    store = dist.distributed_c10d._get_default_store()
    opened = {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "keys": len(store.list_keys()),
    }
    return opened, status("VmRSS") / 2**20


def main() -> int:
    """Run the jobs and print what each rank has before and after."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=4)
    options = parser.parse_args()
    ranks = RankPool(timeout=120)
    try:
        for number in range(WARM):
            ranks.run(options.ranks, train, number)
        before = ranks.run(options.ranks, held)
        began = time.monotonic()
        for number in range(WARM, WARM + options.jobs):
            ranks.run(options.ranks, train, number)
        seconds = time.monotonic() - began
        after = ranks.run(options.ranks, held)
    finally:
        ranks.close()
    print(f"{options.jobs} jobs on {options.ranks} ranks in {seconds:.0f} s")
    problems = 0
    for rank, ((opened, memory), (left, grown)) in enumerate(zip(before, after, strict=True)):
        print(f"rank {rank}: {opened} before, {left} after, {grown - memory:+.1f} MB")
        problems += left != opened or grown - memory > GROWTH_MB
    return bool(problems)


if __name__ == "__main__":
    raise SystemExit(main())
