"""Token sequences that can be learned: most tokens follow from the one before."""

from __future__ import annotations

import torch

_FACTOR = 5
_OFFSET = 3
_JUMPS = 0.1
"""The share of random tokens, which keeps the loss, and so the gradient, away from zero."""


def token_chain(
    generator: torch.Generator, rows: int, length: int, vocabulary: int
) -> torch.Tensor:
    """Draw sequences with `t[i + 1] = (5 t[i] + 3) mod vocabulary`, but a tenth of random tokens.

    Returns:
        int64 `[rows, length]` on the CPU.
    """
    random = torch.randint(vocabulary, (rows, length), generator=generator)
    jumps = torch.rand(rows, length, generator=generator) < _JUMPS
    tokens = [random[:, 0]]
    for column in range(1, length):
        follower = (_FACTOR * tokens[-1] + _OFFSET) % vocabulary
        tokens.append(torch.where(jumps[:, column], random[:, column], follower))
    return torch.stack(tokens, dim=1)
