"""Ragged microbatches: odd, unequal numbers of tokens, and padding that is not zero."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import NamedTuple

import torch

MICROBATCHES = 6
"""A train step's microbatches over all ranks: divisible by 1, 2 and 3 ranks."""

IGNORED = -100
"""Target of a position that does not count; the default `ignore_index` of torch's losses."""

LONGEST = 19
"""Length of the longest sequence, in tokens."""

_SHORTEST = 5
_MOST_ROWS = 4
_LONGEST_PROMPT = 3


class Microbatch(NamedTuple):
    """Some sequences, padded to the longest of them.

    Attributes:
        inputs: token ids, int64 `[rows, length]`, or features, fp32 `[rows, length, features]`.
            Padding is of the same kind as the rest: zeros would hide that somebody reads it.
        targets: classes, int64 `[rows, length]`; `IGNORED` in each row's prompt and padding.
    """

    inputs: torch.Tensor
    targets: torch.Tensor


class Extent(NamedTuple):
    """Where the counted positions of one microbatch's rows start and stop; int64 `[rows]` each."""

    starts: torch.Tensor
    stops: torch.Tensor


def extents(generator: torch.Generator) -> list[Extent]:
    """The shapes of a step's microbatches.

    No two microbatches count equally many tokens, and their sum is divisible by neither 2 nor 3,
    so that neither 2 nor 3 ranks can share it equally, however they split the microbatches. All
    of this is drawn anew for every step.
    """
    while True:
        size = (MICROBATCHES, _MOST_ROWS)
        rows = torch.randint(2, _MOST_ROWS + 1, size[:1], generator=generator)
        starts = torch.randint(_LONGEST_PROMPT + 1, size, generator=generator)
        stops = torch.randint(_SHORTEST, LONGEST + 1, size, generator=generator)
        present = torch.arange(_MOST_ROWS) < rows.unsqueeze(1)
        tokens = ((stops - starts) * present).sum(1).tolist()
        if len(set(tokens)) == MICROBATCHES and gcd(sum(tokens), 6) == 1:
            return [
                Extent(start[:n], stop[:n])
                for start, stop, n in zip(starts, stops, rows.tolist(), strict=True)
            ]


def cut(inputs: torch.Tensor, targets: torch.Tensor, shapes: list[Extent]) -> Iterator[Microbatch]:
    """Cuts full-length rows into the microbatches that `shapes` describes.

    Args:
        inputs: `[rows of all microbatches, LONGEST, ...]`.
        targets: int64 `[rows of all microbatches, LONGEST]`.
        shapes: one `Extent` a microbatch.
    """
    first = 0
    for starts, stops in shapes:
        rows, length = slice(first, first + len(stops)), int(stops.max())
        position = torch.arange(length)
        counts = (position >= starts.unsqueeze(1)) & (position < stops.unsqueeze(1))
        yield Microbatch(
            inputs[rows, :length], targets[rows, :length].masked_fill(~counts, IGNORED)
        )
        first += len(stops)
