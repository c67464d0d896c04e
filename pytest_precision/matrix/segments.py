"""Segments: a sequence divided at the operations after which other processes go on with it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from pytest_precision.matrix.sequence import OPERATIONS, name_of, parse, ranks_of


class Segment(NamedTuple):
    """Operations that one group of ranks runs.

    Attributes:
        number: of the segment, from 0.
        start: index of its first operation, which loads in all segments but the first.
        stop: index of the operation after its last one.
        done: number of train steps of the segments before it.
        world_size: number of ranks.
        in_new_processes: whether its ranks must have run nothing before.
    """

    number: int
    start: int
    stop: int
    done: int
    world_size: int
    in_new_processes: bool


@lru_cache(maxsize=256)  # every step of a run asks
def segments(text: str, world_size: int) -> tuple[Segment, ...]:
    """Divide a sequence where a load goes on in new processes or on another number of ranks.

    A load that names the number of ranks that it already has divides nothing.
    """
    return tuple(_segments(parse(text), world_size))


def _segments(operations: tuple[str, ...], world_size: int) -> Iterator[Segment]:
    segment = Segment(0, 0, 0, 0, world_size, in_new_processes=False)
    done = 0
    for index, operation in enumerate(operations):
        ranks = ranks_of(operation) or segment.world_size
        new = OPERATIONS[name_of(operation)].in_new_processes
        if new or ranks != segment.world_size:
            yield segment._replace(stop=index)
            segment = Segment(segment.number + 1, index, index, done, ranks, new)
        done += operation == "train"
    yield segment._replace(stop=len(operations))
