"""Right loops, each a combination of what loops do; ranks import them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice, product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts
from torch.utils.checkpoint import checkpoint

from pytest_precision import Cell, script
from pytest_precision.recorders.scripts.script_recorder import Record


class Combination(NamedTuple):
    """What a loop does: the parts of its model, its precision, its optimizers and its steps."""

    norm: str
    again: bool
    precision: str
    optimizer: str
    frozen: str
    microbatches: int

    @property
    def name(self) -> str:
        again = "again" if self.again else "once"
        parts = (self.norm, again, self.precision, self.optimizer, self.frozen)
        return f"{'-'.join(parts)}-{self.microbatches}"


class Net(nn.Module):
    """Tokens, a block that may be computed again, and a head that is tied to the tokens."""

    def __init__(self, kind: Combination) -> None:
        super().__init__()
        norm = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm, "none": nn.Identity}[kind.norm]
        self.tokens = nn.Embedding(32, 8)
        self.block = nn.Sequential(nn.Linear(8, 8), norm(8), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(8, 32, bias=False)
        self.again = kind.again
        if kind.frozen == "tied":
            self.head.weight = self.tokens.weight
        if kind.frozen == "frozen":
            self.tokens.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens(tokens)
        if self.again:
            hidden = checkpoint(self.block, hidden, use_reentrant=False)
        else:
            hidden = self.block(hidden)
        return self.head(hidden)


OPTIMIZERS: dict[str, Callable[[nn.Module], list[torch.optim.Optimizer]]] = {
    "adamw": lambda net: [torch.optim.AdamW(trained(net), lr=1e-2)],
    "momentum": lambda net: [torch.optim.SGD(trained(net), lr=1e-2, momentum=0.9)],
    "two rates": lambda net: [
        torch.optim.Adam([net.head.weight], lr=1e-2),
        torch.optim.AdamW([own for own in trained(net) if own is not net.head.weight], lr=4e-2),
    ],
}


def trained(net: nn.Module) -> list[Tensor]:
    return [parameter for parameter in net.parameters() if parameter.requires_grad]


def combinations() -> Iterator[Combination]:
    """Yield 60 of all combinations, evenly spread; a batch norm is not computed again."""
    every = product(
        ("layer", "batch", "none"),
        (False, True),
        ("fp32", "autocast", "bf16"),
        OPTIMIZERS,
        ("all", "tied", "frozen"),
        (1, 3),
    )
    right = [kind for kind in map(Combination._make, every) if kind[:2] != ("batch", True)]
    return islice((right[number * 37 % len(right)] for number in range(len(right))), 60)


def cast(kind: Combination) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16) if kind.precision == "autocast" else nullcontext()


@script
def combined(cell: Cell, record: Record, kind: Combination) -> None:
    """Train with warm restarts, an average of the weights and an evaluation in each step."""
    torch.manual_seed(0)
    net = Net(kind).to(torch.bfloat16 if kind.precision == "bf16" else torch.float32)
    average = copy.deepcopy(net).requires_grad_(False)
    optimizers = OPTIMIZERS[kind.optimizer](net)
    schedulers = [CosineAnnealingWarmRestarts(optimizer, 2) for optimizer in optimizers]
    generator = torch.Generator().manual_seed(1)
    with record():
        while True:
            for _ in range(kind.microbatches):
                tokens = torch.randint(0, 32, (6,), generator=generator)
                with cast(kind):
                    logits = net(tokens).float()
                nn.functional.cross_entropy(logits, tokens.roll(1)).backward()
            torch.nn.utils.clip_grad_norm_(trained(net), 1.0)
            for stepping in (*optimizers, *schedulers):
                stepping.step()
            net.zero_grad()
            with torch.no_grad():
                for mean, parameter in zip(average.parameters(), net.parameters(), strict=True):
                    mean.lerp_(parameter, 0.1)
                average.eval()(tokens)
