"""Loops on ranks that are watched, with a defect on one of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pytest_precision import Recorder

SINGLE = 1 << 20
"""A bit of the mantissa that no rounding of the next update hides."""


class Plan(NamedTuple):
    """What a loop does.

    Attributes:
        defect: what rank 2 does otherwise in step `at`; empty for nothing.
        by_hand: whether gradients are reduced by the loop and not by DDP.
    """

    defect: str = ""
    at: int = 3
    by_hand: bool = False
    steps: int = 5
    every: int = 1
    dropout: float = 0.25
    on_mismatch: str = ""


def flip(tensor: Tensor) -> None:
    """Flip a bit of an element."""
    with torch.no_grad():
        tensor.view(torch.int32).view(-1)[3] ^= SINGLE


def reduced(model: nn.Module, defect: str, before: list[Tensor]) -> None:
    """Average gradients in two buckets; a rank may skip a bucket, or use that of the step before.

    A rank that skips makes the collective all the same, as if it had ignored what comes back.
    """
    gradients = [parameter.grad for parameter in model.parameters()]
    for number, bucket in enumerate((gradients[:2], gradients[2:])):
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
    elif defect == "rate":
        optimizer.param_groups[0]["lr"] *= 2
    elif defect == "noise":  # an operation that is no function of what it reads
        with torch.no_grad():
            weight.add_(torch.rand(weight.shape, generator=torch.Generator().manual_seed(7)))


def train(plan: Plan) -> list[str]:
    """Train on this rank under a watch; return in words what it says."""
    torch.manual_seed(0)
    rank = dist.get_rank()
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(plan.dropout), nn.Linear(16, 6))
    called = model if plan.by_hand else DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(called.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    data = torch.Generator().manual_seed(rank)
    said: list[Any] = []
    before: list[Tensor] = []
    answer: Any = plan.on_mismatch or said.append
    with Recorder(called, optimizer, watch=plan.every, on_mismatch=answer):
        for step in range(1, plan.steps + 1):
            defect = plan.defect if rank == 2 and step == plan.at else ""
            batch = torch.randn(4, 8, generator=data)
            if defect == "batch":
                batch = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
            called(batch).square().mean().backward()
            if plan.by_hand:
                reduced(model, defect, before)
            planted(defect, model, optimizer)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return [str(mismatch) for mismatch in said]
