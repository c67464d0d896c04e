"""Other pieces: whether two sides hold their tensors in pieces that cannot be followed.

A flat buffer of several tensors, and what a collective makes of it, is a value that a side with
other pieces never has, though nothing is wrong with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain

from pytest_precision.parity.explain.lines.calls import moves
from pytest_precision.parity.explain.lines.following import Wrong
from pytest_precision.trace.operations import Holding, OperationLog


def hold_other_pieces(candidate: Sequence[OperationLog], reference: Sequence[OperationLog]) -> bool:
    """Return whether one side holds weights, or what belongs to them, in other pieces.

    Then a tensor of one name has other shapes, or one side alone has weights that are plain
    tensors: those of a sharded one are no memory of their own.

    Args:
        candidate: the logs of its ranks.
        reference: likewise.
    """
    ours, theirs = _shapes(candidate), _shapes(reference)
    unlike = any(ours[held] != theirs[held] for held in ours.keys() & theirs.keys())
    return unlike or any(held.kind == "param" for held in ours.keys() ^ theirs.keys())


def _shapes(logs: Sequence[OperationLog]) -> dict[Holding, set[tuple[int, ...]]]:
    """Return what is held to its shapes on all ranks."""
    found: dict[Holding, set[tuple[int, ...]]] = defaultdict(set)
    for log in logs:
        for held, value in chain(log.given.items(), log.left.items()):
            found[held].add(value.shape)
    return found


def is_of_pieces(wrong: Wrong) -> bool:
    """Return whether a value is unknown for where its elements lie, rather than for what they are.

    It was put into a buffer, it is what a collective made, or it lies in memory that no operation
    has written, as a flat buffer does that shards are views of. A library does so in its own code;
    where a line of the user's does, that line is worth a look.
    """
    line = wrong.call.operation.line
    if line is not None and line.own:
        return False
    return wrong.source or wrong.call.operation.is_collective or moves(wrong.call)
