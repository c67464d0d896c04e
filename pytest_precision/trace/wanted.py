"""Wanted: which tensor operations of a run are logged; plain data that is sent to the ranks."""

from __future__ import annotations

from typing import NamedTuple

LOGGED_OPERATIONS = 200_000
"""Operations of one rank that are logged unless told otherwise."""


class Wanted(NamedTuple):
    """Which operations of a run are logged, and how.

    Attributes:
        op: index of the operation in the sequence; -1 is what makes the engine.
        step: train step at which that operation ends.
        pieces: into how many parts along the first dimension tensors are also digested, since
            the other side may hold shards; 1 for none.
        sketches: whether sketches of results are kept, from which relative errors can be told.
        limit: number of operations of a rank after which no more are logged.
    """

    op: int
    step: int
    pieces: int = 1
    sketches: bool = False
    limit: int = LOGGED_OPERATIONS
