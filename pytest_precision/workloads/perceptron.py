"""Mlp: a residual perceptron, the smallest workload."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from pytest_precision.matrix.cell import Cell
from pytest_precision.workloads.batches import LONGEST, Extent
from pytest_precision.workloads.recipe import TrainingRecipe, initialised

_FEATURES = 13
_CLASSES = 7


class Reader(nn.Linear):
    """A linear layer that casts inputs of any floating dtype to its weight's dtype."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Cast the features to the weight's dtype and apply the layer."""
        return super().forward(features.to(self.weight.dtype))


class MlpBlock(nn.Module):
    """`x + scale * gelu(linear(x))`, with one scale for the whole block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        # A single element: with two or more ranks, some have an empty shard of it.
        self.scale = nn.Parameter(torch.empty(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the block; `[..., width]` in and out."""
        result: torch.Tensor = x + self.scale * F.gelu(self.linear(x))
        return result


class Perceptron(nn.Module):
    """A residual perceptron from 13 features to 7 classes, in which one linear layer is frozen."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.reader = Reader(_FEATURES, width)
        self.blocks = nn.ModuleList(MlpBlock(width) for _ in range(depth))
        self.head = nn.Linear(width, _CLASSES, bias=False)
        self.temperature = nn.Parameter(torch.empty(1))
        # A layer that gradients pass through and that is not trained, if another one is.
        for block in self.blocks[1:][-1:]:
            block.get_submodule("linear").requires_grad_(False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Compute logits `[..., 7]` of features, fp32 `[..., 13]`."""
        x = self.reader(features)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.temperature * self.head(x)
        return logits


class Mlp(TrainingRecipe):
    """Classification of noisy points around 7 centres; 12 thousand parameters.

    Args:
        width: width of the residual stream.
        depth: number of residual blocks.
        lr: learning rate of the matrices; that of vectors is twice as high.
        seed: seed of the data.
        rounded: whether all weights start as numbers of bf16; else those of one tensor do not, and
            masters that are made of weights in bf16 differ from the start.
    """

    def __init__(
        self,
        *,
        width: int = 61,
        depth: int = 3,
        lr: float = 1e-2,
        seed: int = 0,
        rounded: bool = False,
    ) -> None:
        super().__init__(lr=lr, seed=seed, rounded=rounded)
        self.width = width
        self.depth = depth

    def model(self, cell: Cell) -> nn.Module:
        """Make an initialised `Perceptron`."""
        model = Perceptron(self.width, self.depth)
        return initialised(model, rounded=self.rounded).to(cell.device)

    def examples(
        self, generator: torch.Generator, shapes: list[Extent], step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw points around the centres, fp32 `[rows, LONGEST, 13]`, and their classes."""
        size = (sum(len(shape.stops) for shape in shapes), LONGEST)
        fixed = torch.Generator().manual_seed(self.seed)
        centres = torch.randn(_CLASSES, _FEATURES, generator=fixed)
        classes = torch.randint(_CLASSES, size, generator=generator)
        noise = torch.randn(*size, _FEATURES, generator=generator)
        return centres[classes] + 1.5 * noise, classes
