"""Random bits for stochastic rounding that depend only on layer, train step and microbatch."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from math import prod

import numpy as np
import torch
from torch import Tensor

_SEEDS = 1 << 63


@dataclass(frozen=True)
class RoundingRng:
    """The random bits by which one output gradient of one microbatch is rounded.

    They are the same on both sides of a check, and on every rank that computes the microbatch.

    Attributes:
        stream: name of the module whose output gradient is rounded.
        step: number of the train step.
        microbatch: number of the microbatch among those of all ranks.
    """

    stream: str
    step: int = 0
    microbatch: int = 0

    @property
    def seed(self) -> int:
        """The seed of the generator that draws the bits, below 2**63."""
        text = f"{self.stream}/{self.step}/{self.microbatch}"
        digest = blake2b(text.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % _SEEDS

    def bits(self, shape: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
        """Draw a random byte per element for stochastic rounding, for each of two operands.

        The bytes for the rowwise operand have the given shape, those for the columnwise one the
        transposed shape.
        """
        # torch's CPU generator uses only 32 bits of a seed, and each device draws other bits.
        generator = np.random.Philox(key=self.seed)
        rowwise, columnwise = (_bytes(generator, size).to(device) for size in (shape, shape[::-1]))
        return rowwise, columnwise


def _bytes(generator: np.random.Philox, shape: tuple[int, int]) -> Tensor:
    count = prod(shape)
    drawn = np.asarray(generator.random_raw(-(-count // 8)), dtype="<u8")
    return torch.from_numpy(drawn.view(np.uint8)[:count].reshape(shape))
