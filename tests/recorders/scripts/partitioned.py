"""Loops whose optimizers keep a part of the model on each rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import unchanged
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from pytest_precision import Cell, script


class FlatAdamW:
    """Updates this rank's part of all parameters, which lie one after the other with padding."""

    def __init__(self, model: nn.Module, planted: str = "", *, reduces: bool = False) -> None:
        self.named = [*model.named_parameters()]
        self.planted = planted
        self.reduces = reduces
        self.shard = nn.Parameter(self._part([p.detach() for _, p in self.named]))
        if planted.startswith("other values"):
            self.shard.data += 1
        self.inner = torch.optim.AdamW([self.shard], lr=1e-2)

    def _part(self, tensors: list[Tensor]) -> Tensor:
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        padding = -len(flat) % dist.get_world_size()
        flat = torch.cat([flat, torch.full((padding,), torch.nan)])
        return flat.chunk(dist.get_world_size())[dist.get_rank()].clone()

    def step(self) -> None:
        """Update the shard, and gather the shards of all ranks into the parameters."""
        gradients = [p.grad for _, p in self.named]
        if self.reduces:
            gradients = [gradient / dist.get_world_size() for gradient in gradients]
            for gradient in gradients:
                dist.all_reduce(gradient)
        self.shard.grad = self._part(gradients)
        if self.planted == "last rank forgets its gradients" and dist.get_rank():
            self.shard.grad.zero_()
        self.inner.step()
        parts = [torch.empty_like(self.shard) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, self.shard.detach())
        flat = torch.cat(parts)
        with torch.no_grad():
            for _, parameter in self.named:
                own, flat = flat[: parameter.numel()], flat[parameter.numel() :]
                parameter.copy_(own.view_as(parameter))

    def locate(self, tensor: Tensor) -> list[tuple[str | None, Any, int, int]] | None:
        """Return what lies in the shard."""
        return [*self._pieces()] if tensor is self.shard else None

    def _pieces(self) -> Iterator[tuple[str | None, Any, int, int]]:
        first = dist.get_rank() * len(self.shard)
        last, begin = first + len(self.shard), 0
        for name, parameter in self.named:
            end = begin + parameter.numel()
            if max(begin, first) < min(end, last):
                yield name, parameter.shape, max(begin, first) - begin, min(end, last) - begin
            begin = end
        if last > begin:
            yield None, (), 0, last - begin


def train(model: nn.Module, optimizer: Any, limit: float | None = None) -> None:
    """Train without end."""
    for inputs, targets in unchanged.batches(dist.get_rank()):
        nn.functional.mse_loss(model(inputs), targets).backward()
        if limit is not None:
            model.clip_grad_norm_(limit)
        optimizer.step()
        model.zero_grad()


@script
def replicated(cell: Cell, record: unchanged.Record) -> None:
    """Every rank updates everything."""
    model = DistributedDataParallel(unchanged.Net())
    with record():
        train(model, torch.optim.AdamW(model.parameters(), lr=1e-2))


@script
def flat(cell: Cell, record: unchanged.Record, planted: str = "", *, located: bool = True) -> None:
    """Every rank updates its part of a flat tensor."""
    model = DistributedDataParallel(unchanged.Net())
    optimizer = FlatAdamW(model.module, planted)
    with record(locate=optimizer.locate if located else None):
        train(model, optimizer)


@script
def unwrapped(cell: Cell, record: unchanged.Record) -> None:
    """As `flat`, of a model without a wrapper: copies of its gradients are reduced."""
    model = unchanged.Net()
    optimizer = FlatAdamW(model, reduces=True)
    with record(locate=optimizer.locate):
        train(model, optimizer)


@script
def flattened(
    cell: Cell, record: unchanged.Record, keeps: bool = True, limit: float | None = None
) -> None:
    """FSDP1, which keeps the original parameters or not, layer by layer."""
    options = {"use_orig_params": keeps, "device_id": torch.device("cpu")}
    model = unchanged.Net()
    model.first = FullyShardedDataParallel(model.first, **options)
    model = FullyShardedDataParallel(model, **options)
    with record():
        train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), limit)


@script
def zero(cell: Cell, record: unchanged.Record) -> None:
    """Every rank updates some of the parameters."""
    model = DistributedDataParallel(unchanged.Net())
    with record():
        train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2))
