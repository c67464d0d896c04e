"""Tokens: data and loss of a `GPTModel` of Megatron-core, which the layout builds."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pytest_precision.errors import expected_but_got
from pytest_precision.matrix.cell import Cell
from pytest_precision.recipes.megatron import chosen_experts
from pytest_precision.workloads.base import Workload

SECOND_STEP = 2
"""The step in which a rank's first microbatch is its last."""


class Sequences(NamedTuple):
    """One microbatch: tokens, and which of the next tokens count in the loss."""

    tokens: Tensor
    counted: Tensor


class Tokens(Workload):
    """A workload for a `GPTModel`: random sequences, with next-token prediction as the loss.

    Microbatches have one to three sequences, and the last tokens of each do not count. The layout
    builds the model, since Megatron-core's needs its process groups, and has the learning rate.

    Args:
        vocabulary: number of tokens.
        length: tokens of a sequence that the model reads; a multiple of 32 for block formats.
    """

    def __init__(self, vocabulary: int = 96, length: int = 32) -> None:
        self.vocabulary = vocabulary
        self.length = length

    def model(self, cell: Cell) -> nn.Module:
        """Raise TypeError, since the layout builds Megatron-core's model itself.

        Raises:
            TypeError: always.
        """
        raise _refusal("model")

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Raise TypeError, since Megatron-core makes parameter groups from the engine's options.

        Raises:
            TypeError: always.
        """
        raise _refusal("groups")

    def microbatches(self, cell: Cell, step: int) -> list[Sequences]:
        """Draw a step's microbatches: as many as candidate and reference ranks can share evenly."""
        generator = torch.Generator().manual_seed(step)
        number = cell.fewest_microbatches if step == SECOND_STEP else cell.microbatches
        return [self._drawn(1 + n % 3, n % 5, generator) for n in range(number)]

    def _drawn(self, rows: int, left_out: int, generator: torch.Generator) -> Sequences:
        shape = (rows, self.length + 1)
        tokens = torch.randint(self.vocabulary, shape, generator=generator)
        counted_tensor = torch.ones(rows, self.length, dtype=torch.bool)
        counted_tensor[:, self.length - left_out :] = False
        return Sequences(tokens, counted_tensor)

    def tokens(self, microbatch: Sequences) -> int:
        """Return the number of tokens that count in the loss of a microbatch."""
        return int(microbatch.counted.sum())

    def decisions(self, model: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the experts that each token was sent to, and by what margin of router logits."""
        return chosen_experts.last_choices(model)

    def loss(self, model: nn.Module, microbatch: Sequences) -> tuple[Tensor, int]:
        """Return the summed loss of the tokens that count, and their number."""
        tokens = microbatch.tokens.to("cuda")
        positions = torch.arange(self.length, device="cuda").expand(len(tokens), -1)
        labels = tokens[:, 1:].contiguous()
        losses = model(tokens[:, :-1].contiguous(), positions, None, labels=labels)
        return (losses.float() * microbatch.counted.to("cuda")).sum(), self.tokens(microbatch)


def _refusal(method: str) -> TypeError:
    return TypeError(
        expected_but_got(
            "a layout that builds Megatron-core's model itself",
            f"one that calls {method} of the workload",
            "return a recipes.megatron.MegatronEngine",
        )
    )
