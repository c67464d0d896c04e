"""Moe: a mixture of experts, one of which gets no tokens in most microbatches."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from pytest_precision.errors import expected_but_got, named
from pytest_precision.matrix.cell import Cell
from pytest_precision.workloads.batches import IGNORED, LONGEST, Extent, Microbatch, token_chain
from pytest_precision.workloads.recipe import TrainingRecipe, initialised
from pytest_precision.workloads.routing import EXPERTS_PER_TOKEN, Router, over_capacity

_COMMON = 47
_RARE = 6
"""The vocabulary: numbers of common tokens and of rare ones, which alone use the last expert."""

_AUXILIARY = 0.01
"""The weight of the auxiliary loss."""


class Expert(nn.Module):
    """One expert of a mixture: a perceptron of two linear layers."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the expert; `[rows, width]` in and out."""
        result: torch.Tensor = self.down(F.gelu(self.up(x)))
        return result


class Experts(nn.ModuleList):
    """All experts of a block, each called on its own rows of a sorted batch.

    A layout may replace it by a module with the same `forward`.
    """

    def forward(self, rows: torch.Tensor, load: list[int]) -> torch.Tensor:
        """Apply each expert to its part of the rows; `[rows, width]` in and out.

        Args:
            rows: sorted by expert.
            load: number of rows per expert.
        """
        # An idle expert is called without rows, so that its gradient is zero rather than missing:
        # DistributedDataParallel and fully_shard need it.
        parts = zip(self, torch.split(rows, load), strict=True)
        return torch.cat([expert(part) for expert, part in parts])


class StackedExperts(nn.Module):
    """All experts of a block in two grouped linear layers, in place of `Experts`.

    Args:
        up, down: the layers of all experts; each is called with rows and with their number per
            expert.
    """

    def __init__(self, up: nn.Module, down: nn.Module) -> None:
        super().__init__()
        self.up = up
        self.down = down

    def forward(self, rows: torch.Tensor, load: list[int]) -> torch.Tensor:
        """Apply two grouped layers, one after the other, to rows that are sorted by expert."""
        result: torch.Tensor = self.down(F.gelu(self.up(rows, load)), load)
        return result


class MoeBlock(nn.Module):
    """A norm, a router and its experts, with a residual connection.

    Attributes:
        load: int64 `[experts]`, number of tokens that each expert got in training on this rank,
            padding and what it has dropped included.
        dropped: bool `[tokens, 2]`, which experts have dropped a token in the last forward.
        margin: fp32 `[tokens]`, by how much its shares would have to be others for another outcome.
    """

    load: torch.Tensor
    dropped: torch.Tensor
    margin: torch.Tensor

    def __init__(self, experts: int, width: int, hidden: int, capacity: float) -> None:
        super().__init__()
        self.capacity = capacity
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.router = Router(experts, width)
        self.experts = Experts(Expert(width, hidden) for _ in range(experts))
        # A single element: with two or more ranks, some have an empty shard of it.
        self.scale = nn.Parameter(torch.empty(1))
        self.register_buffer("load", torch.zeros(experts, dtype=torch.int64))

    def forward(self, x: torch.Tensor, rare: torch.Tensor) -> torch.Tensor:
        """Apply the block to `[rows, length, width]`; tokens marked `rare` get the last expert."""
        rows = self.norm(x).flatten(0, -2)
        chosen, shares = self.router(rows, rare.flatten())
        experts = torch.arange(len(self.load), device=x.device)
        load = (chosen.flatten() == experts.unsqueeze(1)).sum(1)
        if self.training:
            self.load += load
        self.dropped, self.margin = over_capacity(chosen, shares, self.most(len(rows)))
        shares = shares.masked_fill(self.dropped, 0)
        # Each token is copied per expert, and the copies are sorted by expert and sorted back. No
        # index occurs twice, so the backward of the indexing has no additions in varying order.
        order = chosen.flatten().sort(stable=True).indices
        copies = rows.unsqueeze(1).expand(-1, EXPERTS_PER_TOKEN, -1).flatten(0, 1)[order]
        results = self.experts(copies, load.tolist())[order.argsort()]
        mixed = (
            results.view(-1, EXPERTS_PER_TOKEN, x.shape[-1]) * shares.to(x.dtype).unsqueeze(-1)
        ).sum(1)
        result: torch.Tensor = x + self.scale * mixed.view_as(x)
        return result

    def most(self, tokens: int) -> int:
        """Return one expert's capacity: how many of `tokens` tokens it takes at most."""
        return math.ceil(self.capacity * EXPERTS_PER_TOKEN * tokens / len(self.load))


class Mixture(nn.Module):
    """A mixture of experts over 53 tokens; two vectors of its first block are frozen."""

    def __init__(self, experts: int, depth: int, width: int, hidden: int, capacity: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_COMMON + _RARE, width)
        self.position = nn.Embedding(LONGEST, width)
        self.blocks = nn.ModuleList(
            MoeBlock(experts, width, hidden, capacity) for _ in range(depth)
        )
        # Vectors that are not trained, among those that are.
        for name in ("norm.weight", "scale"):
            self.blocks[0].get_parameter(name).requires_grad_(False)
        self.head = nn.Linear(width, _COMMON + _RARE, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Compute logits `[rows, length, 53]` of token ids, int64 `[rows, length]`."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.position(positions)
        for block in self.blocks:
            x = block(x, tokens >= _COMMON)
        logits: torch.Tensor = self.head(x)
        return logits


class Moe(TrainingRecipe):
    """Prediction of the next token of a noisy affine sequence; by default 28 thousand parameters.

    In odd train steps one of the microbatches has rare tokens, a different one each time. In even
    steps, and in the evaluation data, none has, and the last expert of each block is idle.

    Args:
        experts: number of experts per block, from 3: two for every token, and the reserved one.
        depth: number of blocks.
        width: width of the residual stream. A format without partial blocks, such as nvfp4 with
            blocks of 16, needs a multiple of the block size here and in `hidden`.
        hidden: width inside an expert.
        lr: learning rate of the matrices; that of vectors is twice as high.
        seed: seed of the data.
        capacity: number of tokens that an expert takes, as a multiple of what all experts would
            have to take if they took equally many.
        rounded: whether all weights start as numbers of bf16; else those of one tensor do not, and
            masters that are made of weights in bf16 differ from the start.

    Raises:
        ValueError: `experts` is below 3.
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
        capacity: float = 1.25,
        rounded: bool = False,
    ) -> None:
        if experts <= EXPERTS_PER_TOKEN:
            raise ValueError(
                expected_but_got(
                    f"more than {EXPERTS_PER_TOKEN} experts, since a token goes to "
                    f"{EXPERTS_PER_TOKEN} and the last one is reserved,",
                    named("experts", experts),
                    "leave the argument out to have 5",
                )
            )
        super().__init__(lr=lr, seed=seed, rounded=rounded)
        self.capacity = capacity
        self.experts = experts
        self.depth = depth
        self.width = width
        self.hidden = hidden

    def model(self, cell: Cell) -> nn.Module:
        """Make an initialised `Mixture`."""
        model = Mixture(self.experts, self.depth, self.width, self.hidden, self.capacity)
        return initialised(model, rounded=self.rounded).to(cell.device)

    def decisions(self, model: nn.Module) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Return which experts each token was routed to, and which of them dropped it."""
        choices = {}
        for name, module in model.named_modules():
            if isinstance(module, MoeBlock):  # what is chosen comes before what is dropped
                router = module.router
                choices[f"{name}.router: expert of token"] = (router.chosen, router.margin)
                choices[f"{name}: drop of token"] = (module.dropped, module.margin)
        return choices

    def loss(self, model: nn.Module, microbatch: Microbatch) -> tuple[torch.Tensor, int]:
        """Compute the cross-entropy, and add an auxiliary loss that keeps router logits small."""
        total, tokens = super().loss(model, microbatch)
        counts = (microbatch.targets != IGNORED).flatten()
        for module in model.modules():
            if isinstance(module, Router):
                excess = (module.excess * counts).sum()
                module.excess = module.excess.detach()  # a module with a graph cannot be copied
                total = total + _AUXILIARY * microbatch.weight * excess
        return total, tokens

    def examples(
        self, generator: torch.Generator, shapes: list[Extent], step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw tokens and the tokens that follow them, int64 `[rows, LONGEST]` each."""
        rows = [len(shape.stops) for shape in shapes]
        tokens = token_chain(generator, sum(rows), LONGEST + 1, _COMMON)
        if step % 2:
            chosen = step // 2 % len(shapes)
            first = sum(rows[:chosen])
            # One token in three; the first one is at a position that counts in every row.
            places = tokens[first : first + rows[chosen], 4::3]
            places.remainder_(_RARE).add_(_COMMON)
        return tokens[:, :-1], tokens[:, 1:]
