"""A loop whose layer is spread over two ranks by hand, as a column and a row parallel product."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_precision import Cell, script


class CopiedToAll(torch.autograd.Function):
    """What all ranks read, whose gradient is the sum of theirs, unless that is forgotten."""

    @staticmethod
    def forward(context: Any, value: Tensor, adds_up: bool) -> Tensor:
        context.adds_up = adds_up
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.clone()
        if context.adds_up:
            dist.all_reduce(gradient)
        return gradient, None


class SummedOverAll(torch.autograd.Function):
    """The sum over ranks, whose gradient each of them has."""

    @staticmethod
    def forward(_context: Any, value: Tensor) -> Tensor:
        value = value.clone()
        dist.all_reduce(value)
        return value

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Tensor:
        return gradient


class Spread(nn.Module):
    """Two linear layers, of whose inner width each rank has a part."""

    def __init__(self, adds_up: bool) -> None:
        super().__init__()
        ranks, rank = dist.get_world_size(), dist.get_rank()
        up, down = torch.randn(24, 6), torch.randn(6, 24)
        self.norm = nn.LayerNorm(6)
        self.up = nn.Parameter(up.chunk(ranks, 0)[rank].clone())
        self.down = nn.Parameter(down.chunk(ranks, 1)[rank].clone())
        self._adds_up = adds_up

    def forward(self, rows: Tensor) -> Tensor:
        """Return what both layers make of the rows."""
        inner = CopiedToAll.apply(self.norm(rows), self._adds_up) @ self.up.t()  # Spread
        return SummedOverAll.apply(inner.relu() @ self.down.t())


@script
def trained(cell: Cell, record: Any, adds_up: bool = True) -> None:
    """Train it on the same rows on all ranks."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    model = Spread(adds_up)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    width = 24 // ranks
    begin, end = rank * width, (rank + 1) * width
    places = {
        model.up: [("up", (24, 6), begin * 6, end * 6)],
        model.down: [("down", (6, 24), row * 24 + begin, row * 24 + end) for row in range(6)],
    }
    with record(model, locate=places.get):
        while True:
            model(torch.ones(5, 6).cumsum(1)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
