"""Ragged microbatches: unequal numbers of tokens, and padding that is not zero."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import NamedTuple

import torch

IGNORED = -100
"""The target of a position that does not count; the default `ignore_index` of torch's losses."""

SHORT_STEP = 2
"""The train step with as few microbatches as the ranks can share.

In this step the first microbatch of a rank is its last one; in the steps around it, it is not.
"""

QUIET_STEP = 4
"""The train step whose loss has a small weight, and whose first microbatch counts no token.

Its norm is the only one below `max_norm`, where a clip must leave gradients as they are; and a mean
over the tokens of that microbatch is 0/0.
"""

QUIET_WEIGHT = 2.0**-8
"""The weight of the loss in `QUIET_STEP`; a power of two, so that it rounds nothing."""

LONGEST = 19
"""The length of the longest sequence, in tokens."""

_SHORTEST = 5
_MOST_ROWS = 4
_LONGEST_PROMPT = 3
_TOGETHER = 6
_APART = 24


class Microbatch(NamedTuple):
    """Sequences that are padded to the length of the longest one.

    Attributes:
        inputs: token ids, int64 `[rows, length]`, or features, fp32 `[rows, length, features]`.
            The padding has random values like the rest: zeros would hide that a defect reads it.
        targets: classes, int64 `[rows, length]`; `IGNORED` in each row's prompt and padding.
        weight: factor on the loss of each token.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    weight: float = 1.0


class Extent(NamedTuple):
    """Where the positions that count in the loss start and stop in each row, int64 `[rows]`."""

    starts: torch.Tensor
    stops: torch.Tensor


def extents(generator: torch.Generator, number: int, empty: int = 0) -> list[Extent]:
    """Draw the row lengths, and which positions count in the loss, of a step's microbatches.

    Any 24 consecutive microbatches count different numbers of tokens. The sum of all tokens is
    divisible by neither 2 nor 3, so that no number of ranks with such a factor can share it
    equally, however they split the microbatches.

    Args:
        generator: the source of the random shapes.
        number: number of microbatches.
        empty: how many of them, from the first, count no token.
    """
    shapes: list[Extent] = []
    tokens: list[int] = []
    while len(shapes) < number:
        # One by one from the seventh on: more different ones are hardly ever drawn at once.
        drawn, counted = _drawn(generator, 1 if shapes else min(_TOGETHER, number))
        recent = (tokens + counted)[-_APART:]
        odd = gcd(sum((tokens + counted)[empty:]), 6) == 1
        if len(set(recent)) == len(recent) and (odd or len(shapes) + len(drawn) < number):
            shapes, tokens = shapes + drawn, tokens + counted
    return [Extent(stops, stops) for _, stops in shapes[:empty]] + shapes[empty:]


def _drawn(generator: torch.Generator, number: int) -> tuple[list[Extent], list[int]]:
    """Draw random row lengths, and how many tokens count in the loss, for each microbatch."""
    size = (number, _MOST_ROWS)
    rows = torch.randint(2, _MOST_ROWS + 1, size[:1], generator=generator)
    starts = torch.randint(_LONGEST_PROMPT + 1, size, generator=generator)
    stops = torch.randint(_SHORTEST, LONGEST + 1, size, generator=generator)
    present = torch.arange(_MOST_ROWS) < rows.unsqueeze(1)
    shapes = [
        Extent(start[:n], stop[:n])
        for start, stop, n in zip(starts, stops, rows.tolist(), strict=True)
    ]
    return shapes, ((stops - starts) * present).sum(1).tolist()


def cut(
    inputs: torch.Tensor, targets: torch.Tensor, shapes: list[Extent], weight: float
) -> Iterator[Microbatch]:
    """Cut full-length rows of data into microbatches with the row lengths in `shapes`.

    Args:
        inputs: `[rows of all microbatches, LONGEST, ...]`.
        targets: int64 `[rows of all microbatches, LONGEST]`.
        shapes: one `Extent` per microbatch.
        weight: that of every microbatch.
    """
    first = 0
    for starts, stops in shapes:
        rows, length = slice(first, first + len(stops)), int(stops.max())
        position = torch.arange(length)
        counts = (position >= starts.unsqueeze(1)) & (position < stops.unsqueeze(1))
        yield Microbatch(
            inputs[rows, :length], targets[rows, :length].masked_fill(~counts, IGNORED), weight
        )
        first += len(stops)


_FACTOR = 5
_OFFSET = 3
_JUMPS = 0.1
"""The share of random tokens, which keeps the loss, and so the gradient, away from zero."""


def token_chain(
    generator: torch.Generator, rows: int, length: int, vocabulary: int
) -> torch.Tensor:
    """Draw sequences with `t[i + 1] = (5 t[i] + 3) mod vocabulary`, a tenth of it random tokens.

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
