"""Loops on ranks that are watched, with a defect on one of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from pytest_precision import Recorder, WatchError

SINGLE = 1 << 20
"""A bit of the mantissa that no rounding of the next update hides."""


class Plan(NamedTuple):
    """What a loop does.

    Attributes:
        defect: what rank 2 does otherwise in step `at`; empty for nothing.
        wrapper: of the model or the optimizer; `none` where the loop reduces gradients.
        seeds: whether each rank draws other numbers.
        every, replay, on_mismatch: how it is watched; its mismatches are returned unless given.
    """

    defect: str = ""
    at: int = 3
    wrapper: str = "ddp"
    steps: int = 5
    seeds: bool = False
    every: int | None = 1
    replay: bool = False
    on_mismatch: str = ""


def flip(tensor: Tensor) -> None:
    """Flip a bit of an element."""
    with torch.no_grad():
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        local.view(torch.int32).view(-1)[3] ^= SINGLE


def reduced(model: nn.Module, defect: str, before: list[Tensor]) -> None:
    """Average gradients in two buckets; a rank may skip a bucket, or use that of the step before.

    A rank that skips one makes the collective all the same, as if it had ignored what comes back;
    one that has lost it makes none.
    """
    gradients = [parameter.grad for parameter in model.parameters()]
    for number, bucket in enumerate((gradients[:2], gradients[2:])):
        if number and defect == "lost":
            continue
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        stale = before[number] if len(before) > 1 else flat
        before[number : number + 1] = [flat.clone()]
        if number and defect == "skip":
            continue
        flat = stale if number and defect == "stale" else flat
        for gradient, part in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
            gradient.copy_(part.view_as(gradient))


def planted(defect: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Do what a defect does between the backward and the update."""
    weight = model.get_submodule("0").weight
    if defect == "gradient":
        flip(weight.grad)
    elif defect == "moment":
        flip(optimizer.state[weight]["exp_avg"])
    elif defect == "weight":
        flip(weight)
    elif defect == "seed":
        torch.manual_seed(9)
    elif defect == "bias":
        flip(model.get_submodule("3").bias)
    elif defect == "rate":
        optimizer.param_groups[0]["lr"] *= 2
    elif defect == "noise":  # an operation that is no function of what it reads
        with torch.no_grad():
            weight.add_(torch.rand(weight.shape, generator=torch.Generator().manual_seed(7)))


def wrapped(model: nn.Module, wrapper: str) -> nn.Module:
    """Return what the loop calls."""
    ranks = dist.get_world_size()
    if wrapper in ("ddp", "zero"):
        return DistributedDataParallel(model)
    if wrapper == "fsdp1":
        cpu = torch.device("cpu")
        return FullyShardedDataParallel(model, device_id=cpu, use_orig_params=True)
    if wrapper == "tp":
        split = {"0": ColwiseParallel(), "3": RowwiseParallel()}
        return parallelize_module(model, init_device_mesh("cpu", (ranks,)), split)
    if wrapper == "hsdp":
        mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("r", "s"))
        return fully_shard(model, mesh=mesh)
    return fully_shard(model) if wrapper == "fsdp2" else model


def batch_of(rank: int, step: int) -> Tensor:
    """Return the batch of a rank in a step, which no other one has."""
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + rank))


class Noisy(nn.Module):
    """A module with an operation that is not the same twice, once it is noisy."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.is_noisy = False

    def forward(self, batch: Tensor) -> Tensor:
        self.calls += self.is_noisy
        return batch * (1 + 2**-4 * self.calls)


def train(plan: Plan) -> list[str]:
    """Train on this rank under a watch; return in words what it says."""
    rank = dist.get_rank()
    # Two stages of two replicas, or four parts of one layer, with equal zeros and ones.
    part = {"stages": rank // 2, "columns": rank}.get(plan.wrapper, 0)
    torch.manual_seed(part)
    model = nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.25), nn.Linear(16, 6), Noisy()
    )
    if plan.wrapper in ("tp", "fsdp1", "fsdp2", "hsdp"):
        model[1] = nn.Identity()
    called = wrapped(model, plan.wrapper)
    torch.manual_seed(rank if plan.seeds else 0)
    if plan.wrapper == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer  # it compiles for seconds

        optimizer = ZeroRedundancyOptimizer(called.parameters(), torch.optim.AdamW, lr=0.01)
    else:
        optimizer = torch.optim.AdamW(called.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    said: list[Any] = []
    before: list[Tensor] = []
    answer: Any = plan.on_mismatch or said.append
    watch = Recorder(called, optimizer, watch=plan.every, replay=plan.replay, on_mismatch=answer)
    with watch:
        for step in range(1, plan.steps + 1):
            defect = plan.defect if rank == 2 and step == plan.at else ""
            if defect == "absent":
                break
            model[-1].is_noisy = defect == "noisy"
            reading = part if plan.wrapper in ("tp", "stages", "columns") else rank
            batch = batch_of(1 if defect == "batch" else reading, step)
            called(batch).square().mean().backward()
            if plan.wrapper == "none":
                reduced(model, defect, before)
            planted(defect, model, optimizer)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return [str(mismatch) for mismatch in said]


def train_until_ended(plan: Plan) -> str:
    """Make a process group that waits for seconds alone; return what ends the loop."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=3))
    try:
        train(plan)
    except (WatchError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
