"""What the properties of workloads are measured with: seeded models, short trainings, digests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pytest_precision import Cell, Workload
from pytest_precision.workloads.routing import Router

CELL = Cell()
STEPS = 8
"""Train steps of a short run."""

LONG = 24
"""Train steps in which a loss must go down."""


def seeded(workload: Workload, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return workload.model(CELL)


def parameters_in(dtype: torch.dtype, model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def auxiliary(model: nn.Module, counts: Tensor) -> Tensor:
    """What the counted tokens of the last microbatch add to the loss beside their cross-entropy."""
    routers = [module for module in model.modules() if isinstance(module, Router)]
    return 0.01 * sum((router.excess * counts.flatten()).sum() for router in routers)


def of_steps(workload: Workload, last: int = STEPS) -> Iterator[tuple[int, list[Any]]]:
    for step in range(last + 1):
        yield step, list(workload.microbatches(CELL, step))


class Step(NamedTuple):
    loss: float
    norm: float
    unmoved: list[str]
    moved_share: float


def train(workload: Workload, model: nn.Module, steps: int) -> list[Step]:
    """Trains with AdamW on the parameters as they are."""
    optimizer = torch.optim.AdamW(workload.groups(model))
    scheduler = workload.scheduler(optimizer)
    history = []
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        microbatches = workload.microbatches(CELL, step)
        tokens = sum(map(workload.tokens, microbatches))
        total = 0.0
        for microbatch in microbatches:
            loss = workload.loss(model, microbatch)[0] / tokens
            loss.backward()
            total += loss.item()
        max_norm = torch.inf if workload.max_norm is None else workload.max_norm
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm).item()
        taught = {name: p for name, p in model.named_parameters() if p.requires_grad}
        before = {name: p.detach().clone() for name, p in taught.items()}
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        moved = {name: int((before[name] != p).sum()) for name, p in taught.items()}
        unmoved = [name for name, elements in moved.items() if not elements]
        share = sum(moved.values()) / sum(p.numel() for p in taught.values())
        history.append(Step(total, norm, unmoved, share))
    return history


@cache
def trained(make: type[Workload], steps: int, dtype: torch.dtype = torch.float32) -> list[Step]:
    """What training does to a seeded model with parameters of `dtype`."""
    return train(make(), seeded(make()).to(dtype), steps)


def digest(*tensors: Tensor) -> bytes:
    content = hashlib.sha256()
    for tensor in tensors:
        content.update(repr((tensor.dtype, tensor.shape)).encode())
        content.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return content.digest()


def loss_and_grads(workload: Workload, model: nn.Module, microbatch: Any) -> bytes:
    """Digest of one microbatch's loss and gradients."""
    model.zero_grad()
    loss, _ = workload.loss(model, microbatch)
    loss.backward()
    return digest(loss.view(1), *(p.grad for p in model.parameters() if p.grad is not None))


def fingerprint(workload: Workload) -> str:
    """Digest of some data, and of the losses and gradients of seeded models on it."""
    content = hashlib.sha256()
    for microbatch in workload.microbatches(CELL, 3):
        content.update(digest(microbatch.inputs, microbatch.targets))
        for dtype in (torch.float32, torch.bfloat16):
            content.update(loss_and_grads(workload, seeded(workload).to(dtype), microbatch))
    return content.hexdigest()


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Deterministic algorithms, and NaN in whatever memory is allocated."""
    before = torch.utils.deterministic.fill_uninitialized_memory
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = before
