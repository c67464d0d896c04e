"""Random bits that depend on what they are for, and on nothing else."""

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
    """The random bits of one gradient of one microbatch.

    They are the same on both sides of a check, and on whatever rank the microbatch is computed.

    Attributes:
        stream: whose gradient: the name of the weight's module.
        step: number of the train step.
        microbatch: its number among those of all ranks.
    """

    stream: str
    step: int = 0
    microbatch: int = 0

    @property
    def seed(self) -> int:
        """Of a generator that draws them, below 2**63."""
        text = f"{self.stream}/{self.step}/{self.microbatch}"
        digest = blake2b(text.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % _SEEDS

    def bits(self, shape: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
        """uint8 [rows, columns] for the rowwise operand, [columns, rows] for the columnwise one."""
        # torch's generator of the CPU reads 32 bits of a seed, and each device draws other bits.
        generator = np.random.Philox(key=self.seed)
        rowwise, columnwise = (_bytes(generator, size).to(device) for size in (shape, shape[::-1]))
        return rowwise, columnwise


def _bytes(generator: np.random.Philox, shape: tuple[int, int]) -> Tensor:
    count = prod(shape)
    drawn = np.asarray(generator.random_raw(-(-count // 8)), dtype="<u8")
    return torch.from_numpy(drawn.view(np.uint8)[:count].reshape(shape))
