"""Gpt: a small causal transformer with a tied output layer."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from pytest_precision.matrix.cell import Cell
from pytest_precision.workloads.batches import LONGEST, Extent, token_chain
from pytest_precision.workloads.recipe import TrainingRecipe, initialised

_VOCABULARY = 67


class Attention(nn.Module):
    """Causal attention with several query heads and one head of keys and values."""

    def __init__(self, heads: int, head_width: int, *, fixed: bool) -> None:
        super().__init__()
        self.heads = heads
        self.head_width = head_width
        width = heads * head_width
        self.qkv = nn.Linear(width, width + 2 * head_width)
        self.out = nn.Linear(width, width)
        self.temperature: nn.Parameter | float = head_width**-0.5
        if not fixed:  # a single element: with two or more ranks, some have an empty shard of it
            self.temperature = nn.Parameter(torch.empty(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend to the positions up to each one; `[rows, length, width]` in and out."""
        rows, length, width = x.shape
        head_width = self.head_width
        query, key, value = self.qkv(x).split([width, head_width, head_width], dim=-1)
        # No fused kernel: on each device those choose their own order of additions.
        query = query.reshape(rows, length * self.heads, head_width)
        scores = (self.temperature * (query @ key.transpose(1, 2))).float()
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(future.repeat_interleave(self.heads, dim=0), -torch.inf)
        mixed_tensor: torch.Tensor = scores.softmax(-1).to(value.dtype) @ value
        attended: torch.Tensor = self.out(mixed_tensor.reshape(rows, length, width))
        return attended


class GptBlock(nn.Module):
    """Attention and a perceptron, each with a norm before it and a residual connection."""

    def __init__(self, heads: int, head_width: int, *, fixed: bool) -> None:
        super().__init__()
        width = heads * head_width
        hidden = (3 * heads - 2) * head_width
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(heads, head_width, fixed=fixed)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the block; `[rows, length, width]` in and out."""
        x = x + self.attention(self.attention_norm(x))
        result: torch.Tensor = x + self.down(F.gelu(self.up(self.norm(x))))
        return result


class LanguageModel(nn.Module):
    """A transformer over 67 tokens, in which one norm is frozen."""

    def __init__(self, heads: int, depth: int, head_width: int, *, fixed: bool) -> None:
        super().__init__()
        width = heads * head_width
        self.embedding = nn.Embedding(_VOCABULARY, width)
        self.blocks = nn.ModuleList(GptBlock(heads, head_width, fixed=fixed) for _ in range(depth))
        # Vectors that are not trained, among those that are.
        self.blocks[0].get_submodule("norm").requires_grad_(False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, _VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Compute logits `[rows, length, 67]` of token ids, int64 `[rows, length]`."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


class Gpt(TrainingRecipe):
    """Prediction of the next token of a noisy affine sequence; 22 thousand parameters.

    Args:
        heads: number of query heads.
        depth: number of blocks.
        head_width: width of a head. With 16 and 2 heads, the sizes of all blocks are multiples of
            32, as Transformer Engine needs them.
        fixed_temperature: whether scores are divided by the root of `head_width`, as in Transformer
            Engine's layers, rather than multiplied by a parameter.
        lr: learning rate of the matrices; that of vectors is twice as high.
        seed: seed of the data.
        rounded: whether all weights start as numbers of bf16; else those of one tensor do not, and
            masters that are made of weights in bf16 differ from the start.
    """

    def __init__(
        self,
        *,
        heads: int = 5,
        depth: int = 2,
        head_width: int = 7,
        fixed_temperature: bool = False,
        lr: float = 1e-2,
        seed: int = 0,
        rounded: bool = False,
    ) -> None:
        super().__init__(lr=lr, seed=seed, rounded=rounded)
        self.heads = heads
        self.depth = depth
        self.head_width = head_width
        self.fixed_temperature = fixed_temperature

    def model(self, cell: Cell) -> nn.Module:
        """Make an initialised `LanguageModel`."""
        fixed = self.fixed_temperature
        model = LanguageModel(self.heads, self.depth, self.head_width, fixed=fixed)
        return initialised(model, rounded=self.rounded).to(cell.device)

    def examples(
        self, generator: torch.Generator, shapes: list[Extent], step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw tokens and the tokens that follow them, int64 `[rows, LONGEST]` each."""
        rows = sum(len(shape.stops) for shape in shapes)
        tokens = token_chain(generator, rows, LONGEST + 1, _VOCABULARY)
        return tokens[:, :-1], tokens[:, 1:]
