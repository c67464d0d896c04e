"""Training loops as people write them: nothing here knows that it is recorded, but for one line."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from pytest_precision import Cell, script, workloads

Record = Callable[..., AbstractContextManager[None]]
ACCUMULATED = 3


class Net(nn.Module):
    """Two layers, a norm between them, and a buffer that every forward moves."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(7, 13)
        self.norm = nn.BatchNorm1d(13)
        self.head = nn.Linear(13, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.norm(self.first(inputs)).relu())


def batches(rank: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Draw batches without end."""
    generator = torch.Generator().manual_seed(rank)
    while True:
        yield torch.randn(5, 7, generator=generator), torch.randn(5, 3, generator=generator)


def adamw(model: nn.Module, lr: float = 1e-2) -> torch.optim.Optimizer:
    """Decay the weights of layers alone."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr)


def accumulating(
    model: nn.Module,
    steps: int,
    planted: str = "",
    scaler: Any = None,
    rank: int = 0,
    accumulated: int = ACCUMULATED,
) -> Iterator[int]:
    """Train with accumulated gradients; `planted` names a defect. Yields after every step."""
    optimizer = adamw(model, 2e-2 if planted == "wrong lr" else 1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=4)
    scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
    data = batches(rank)
    divisor = accumulated - 1 if planted == "wrong divisor" else accumulated
    for step in range(1, steps + 1):
        for _ in range(accumulated):
            inputs, targets = next(data)
            inputs = inputs.to(next(model.parameters()).dtype)
            loss = nn.functional.mse_loss(model(inputs).float(), targets) / divisor
            if planted == "overflow" and step == 2:
                loss = loss * torch.inf
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        if planted == "clip by value":
            nn.utils.clip_grad_value_(model.parameters(), 1e-3)
        elif planted not in ("clip after step", "no clip"):
            clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        if planted == "clip after step":
            clip_grad_norm_(model.parameters(), 0.1)
        if planted == "weights not updated" and step == 2:
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter.copy_(before[name])
        scale = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() >= scale or "schedule moves" in planted:
            schedule.step()
        if planted != "zero_grad forgotten":
            optimizer.zero_grad()
        yield step


def run(steps: Iterator[int]) -> None:
    """Go through all steps."""
    for _ in steps:
        pass


@script
def plain(cell: Cell, record: Record, planted: str = "", scale: float = 0.0) -> None:
    """A loop on one rank."""
    model = Net()
    if planted == "bf16 parameters":
        model.bfloat16()
    with record():
        run(accumulating(model, 1000, planted))


@script
def scaled(cell: Cell, record: Record, planted: str = "") -> None:
    """A loop with loss scaling."""
    model = Net()
    with record():
        run(accumulating(model, 1000, planted, torch.amp.GradScaler("cpu")))


def careful(cell: Cell, record: Record) -> None:
    """A loop that makes no update with gradients that are not finite."""
    model = Net()
    optimizer = adamw(model)
    with record():
        for inputs, targets in batches():
            nn.functional.mse_loss(model(inputs), targets).backward()
            if clip_grad_norm_(model.parameters(), 0.1).isfinite():
                optimizer.step()
            optimizer.zero_grad()


def watchful(cell: Cell, record: Record, told: bool = True) -> None:
    """A loop that looks at its gradients itself, and says that it leaves an update out, or not."""
    model = Net()
    optimizer = adamw(model)
    with record():
        for inputs, targets in batches():
            nn.functional.mse_loss(model(inputs), targets).backward()
            if all(one.grad.isfinite().all() for one in model.parameters()):
                optimizer.step()
            elif told:
                record.skipped()
            optimizer.zero_grad()


@script
def adversarial(cell: Cell, record: Record, planted: str = "") -> None:
    """A generator and a discriminator in turn, each with an optimizer of its own."""
    generator, discriminator = nn.Linear(3, 7), Net()
    optimizers = [adamw(generator), adamw(discriminator)]
    with record():
        while True:
            for optimizer, sign in zip(optimizers, (1.0, -1.0), strict=True):
                (sign * discriminator(generator(torch.randn(5, 3))).tanh().mean()).backward()
                optimizer.step()
                for one in optimizers:
                    one.zero_grad()


@script
def ddp(cell: Cell, record: Record, planted: str = "", accumulated: int = ACCUMULATED) -> None:
    """A loop under DistributedDataParallel."""
    model = DistributedDataParallel(Net())
    with record():
        run(accumulating(model, 1000, planted, None, dist.get_rank(), accumulated))


@script
def fsdp2(cell: Cell, record: Record, planted: str = "", accumulated: int = ACCUMULATED) -> None:
    """A loop under fully_shard, layer by layer."""
    model = Net()
    fully_shard(model.first)
    fully_shard(model)
    with record():
        run(accumulating(model, 1000, planted, None, dist.get_rank(), accumulated))


class ClippedByTorch(workloads.mlp):
    """The ready workload with the clip of most loops."""

    clip = "torch"


@script
def of_workload(cell: Cell, record: Record) -> None:
    """A workload, trained by a loop that is written out."""
    workload = ClippedByTorch()
    model = workload.model(cell)
    optimizer = torch.optim.AdamW(workload.groups(model))
    scheduler, limit = workload.scheduler(optimizer), workload.max_norm
    with record():
        for step in itertools.count(1):
            optimizer.zero_grad()
            data = workload.microbatches(cell, step)
            tokens = sum(workload.tokens(microbatch) for microbatch in data)
            for microbatch in data:
                (workload.loss(model, microbatch)[0] / tokens).backward()
            clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], limit)
            optimizer.step()
            scheduler.step()


Make = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "lbfgs": partial(torch.optim.LBFGS, max_iter=3, lr=0.1),
    "adamw": partial(torch.optim.AdamW, lr=0.1),
}


@script
def closures(cell: Cell, record: Any, optimizer: str = "adamw", own: bool = False) -> None:
    """A loop whose forwards lie in the steps of its optimizer."""
    model = nn.Linear(3, 2)
    trained = OPTIMIZERS[optimizer](model.parameters())

    def closure() -> torch.Tensor:
        trained.zero_grad()
        loss = model(torch.ones(2, 3)).square().mean()
        loss.backward()
        return loss

    with record():
        while True:
            if own:  # what the closure does, without one
                closure()
                trained.step()
            else:
                trained.step(closure)


@script
def rebuilt(
    cell: Cell, record: Any, anew: bool = True, kept: bool = False, planted: bool = False
) -> None:
    """A loop that saves after two steps, builds everything anew, loads and goes on."""

    def built() -> tuple[nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.StepLR]:
        model = Net()
        optimizer = adamw(model)
        return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 100)

    model, optimizer, scheduler = built()
    others: list[Any] = []
    with record():
        for step, (inputs, targets) in enumerate(batches()):
            if anew and step == 2:
                saved = model.state_dict(), optimizer.state_dict(), scheduler.state_dict()
                if kept:
                    others.append(model)
                rng = torch.get_rng_state()
                model, optimizer, scheduler = built()
                torch.set_rng_state(rng)
                model.load_state_dict(saved[0])
                optimizer.load_state_dict(saved[1])
                scheduler.load_state_dict(saved[2])
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            scheduler.step()
            scheduler.last_epoch += planted and step == 2
            optimizer.zero_grad()
