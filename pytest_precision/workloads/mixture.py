"""Moe: a mixture of experts, one of which has nothing to do in most microbatches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F

from pytest_precision.errors import expected_but_got, named
from pytest_precision.workloads.batches import LONGEST, Extent
from pytest_precision.workloads.initial import initialised
from pytest_precision.workloads.recipe import TrainingRecipe
from pytest_precision.workloads.token_chain import token_chain

if TYPE_CHECKING:
    from pytest_precision.matrix.cell import Cell

_COMMON, _RARE = 47, 6
"""The vocabulary: ordinary tokens, then those that only the last expert reads."""

_CHOICES = 2
"""Experts that a token goes to."""


class Expert(nn.Module):
    """A perceptron of its own."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(F.gelu(self.up(x)))
        return result


class Experts(nn.ModuleList):
    """All experts of a block; a layout may put a module of the same call in its place."""

    def forward(self, rows: torch.Tensor, load: list[int]) -> torch.Tensor:
        """What the experts make of `rows`, `[rows, width]`, the first `load[0]` of expert 0."""
        # An idle expert is called with no rows: its gradient is then zero and not missing, which
        # is what DistributedDataParallel and fully_shard need.
        parts = zip(self, torch.split(rows, load), strict=True)
        return torch.cat([expert(part) for expert, part in parts])


class Router(nn.Module):
    """Chooses the experts of each token, and how much each of them counts.

    The last expert is reserved for rare tokens, which always go to it: so it is certain, and no
    accident of the weights, when it is idle.
    """

    high_precision = True  # so that quantized layouts leave its linear layer alone

    def __init__(self, experts: int, width: int) -> None:
        super().__init__()
        self.logits = nn.Linear(width, experts)

    def forward(self, x: torch.Tensor, rare: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Experts, int64 `[tokens, 2]`, and their shares, fp32 `[tokens, 2]`.

        Args:
            x: `[tokens, width]`.
            rare: bool `[tokens]`.
        """
        logits = self.logits(x).float()
        wish = logits.detach().clone()
        wish[:, -1] = torch.where(rare, torch.inf, -torch.inf)
        # A stable sort, unlike topk, says which of two equal logits comes first.
        chosen = wish.sort(dim=-1, descending=True, stable=True).indices[:, :_CHOICES]
        return chosen, logits.gather(1, chosen).softmax(-1)


class MoeBlock(nn.Module):
    """A norm, a router and its experts, beside a residual connection.

    Attributes:
        load: int64 `[experts]`, tokens that each expert got in training on this rank, padding
            included.
    """

    load: torch.Tensor

    def __init__(self, experts: int, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.router = Router(experts, width)
        self.experts = Experts(Expert(width, hidden) for _ in range(experts))
        # A single element: with two or more ranks, some have an empty shard of it.
        self.scale = nn.Parameter(torch.empty(1))
        self.register_buffer("load", torch.zeros(experts, dtype=torch.int64))

    def forward(self, x: torch.Tensor, rare: torch.Tensor) -> torch.Tensor:
        rows = self.norm(x).flatten(0, -2)
        chosen, shares = self.router(rows, rare.flatten())
        experts = torch.arange(len(self.load), device=x.device)
        load = (chosen.flatten() == experts.unsqueeze(1)).sum(1)
        if self.training:
            self.load += load
        # Copies of a token stand side by side, are sorted by expert, and go back. No two rows of
        # either indexing are the same, so that its backward adds nothing in an order of its own.
        order = chosen.flatten().sort(stable=True).indices
        copies = rows.unsqueeze(1).expand(-1, _CHOICES, -1).flatten(0, 1)[order]
        results = self.experts(copies, load.tolist())[order.argsort()]
        mixed = (results.view(-1, _CHOICES, x.shape[-1]) * shares.to(x.dtype).unsqueeze(-1)).sum(1)
        result: torch.Tensor = x + self.scale * mixed.view_as(x)
        return result


class Mixture(nn.Module):
    """Token ids, int64 `[rows, length]`, to logits `[rows, length, 53]`."""

    def __init__(self, experts: int, depth: int, width: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_COMMON + _RARE, width)
        self.position = nn.Embedding(LONGEST, width)
        self.blocks = nn.ModuleList(MoeBlock(experts, width, hidden) for _ in range(depth))
        self.head = nn.Linear(width, _COMMON + _RARE, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.position(positions)
        for block in self.blocks:
            x = block(x, tokens >= _COMMON)
        logits: torch.Tensor = self.head(x)
        return logits


class Moe(TrainingRecipe):
    """Predicts the next token of a noisy affine sequence; 28 thousand parameters as it stands.

    In odd train steps one of the microbatches has rare tokens, another one each time; in even
    steps, and in the evaluation data, none has, and the last expert of each block is idle.

    Args:
        experts: in each block, from 3: two for every token, and the reserved one.
        depth: number of blocks.
        width: of the rows between the blocks; formats that have blocks of 16 elements and no
            partial ones need a multiple of 16 here and in `hidden`.
        hidden: width inside an expert.
        lr: learning rate of the matrices; vectors have twice as much.
        seed: of the data.

    Raises:
        ValueError: for fewer than 3 experts.
    """

    def __init__(
        self,
        *,
        experts: int = 5,
        depth: int = 2,
        width: int = 29,
        hidden: int = 41,
        lr: float = 1e-2,
        seed: int = 0,
    ) -> None:
        if experts <= _CHOICES:
            raise ValueError(
                expected_but_got(
                    f"more than {_CHOICES} experts, since a token goes to {_CHOICES} and the last "
                    "one is reserved,",
                    named("experts", experts),
                    "leave the argument out for 5",
                )
            )
        super().__init__(lr=lr, seed=seed)
        self.experts = experts
        self.depth = depth
        self.width = width
        self.hidden = hidden

    def model(self, cell: Cell) -> nn.Module:
        """A `Mixture`."""
        return initialised(Mixture(self.experts, self.depth, self.width, self.hidden)).to(
            cell.device
        )

    def examples(
        self, generator: torch.Generator, shapes: list[Extent], step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and the tokens that follow them, int64 `[rows, LONGEST]` each."""
        rows = [len(shape.stops) for shape in shapes]
        tokens = token_chain(generator, sum(rows), LONGEST + 1, _COMMON)
        if step % 2:
            chosen = step // 2 % len(shapes)
            first = sum(rows[:chosen])
            # One token in three; the first of them, unlike a row's ends, counts in every row.
            places = tokens[first : first + rows[chosen], 4::3]
            places.remainder_(_RARE).add_(_COMMON)
        return tokens[:, :-1], tokens[:, 1:]
