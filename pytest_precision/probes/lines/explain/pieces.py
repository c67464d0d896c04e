"""Tell what the sides' different shards of tensors explain from wrong operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_precision.probes.lines.explain.calls import SingleCall, moves, shapes_of
from pytest_precision.probes.lines.explain.following import Wrong
from pytest_precision.probes.lines.operations import OperationLog


def hold_other_pieces(candidate: Sequence[OperationLog], reference: Sequence[OperationLog]) -> bool:
    """Return whether the sides split weights or optimizer state into different pieces.

    They do if a tensor has another shape on one side, or weights have other names, as flat ones do.

    Args:
        candidate: the logs of its ranks.
        reference: the logs of the reference's ranks.
    """
    ours, theirs = shapes_of(candidate), shapes_of(reference)
    unlike = any(ours[holding] != theirs[holding] for holding in ours.keys() & theirs.keys())
    alone = (ours.keys() - theirs.keys(), theirs.keys() - ours.keys())
    return unlike or all(any(holding.kind == "param" for holding in side) for side in alone)


def tellable(wrong: Sequence[Wrong]) -> list[Wrong]:
    """Return only those wrong operations that cannot be explained by the runs' different sharding.

    What is right up to there comes first. Where operations have no counterpart, one of them is
    named if they belong to one line, since nothing tells which of them is right.
    """
    origins = []
    for origin in sorted(wrong, key=lambda origin: bool(origin.suspects or origin.cut_otherwise)):
        if origin.suspects or origin.cut_otherwise:
            suspect = None if origin.cut_otherwise else _only_line(origin)
            if suspect is not None:
                origins.append(replace(origin, call=suspect, unlike=(), source=False))
        elif not _is_of_pieces(origin):
            origins.append(origin)
    return origins


def _only_line(wrong: Wrong) -> SingleCall | None:
    """Return the first suspected operation if all of them belong to one source line; else None.

    Where all of them only move values, the last one has put a value where it does not belong.
    What a library does for a line of the user's belongs to that line; what it does by itself is not
    held against it where there is one.
    """
    computed = [call for call in wrong.suspects if not moves(call)] or [wrong.call]
    by_users = [call for call in computed if call.line is not None and call.line.is_users]
    computed = by_users or computed
    places = {call.line and call.line[:2] for call in computed}
    return computed[0] if len(places) == 1 else None


def _is_of_pieces(wrong: Wrong) -> bool:
    """Return whether the reference may lack a value only because it shards tensors differently.

    It was put into a buffer, it is what a collective made, or it lies in memory that no operation
    has written, as a flat buffer does that shards are views of. A library does so in its own code;
    where a line of the user's does, that line is worth a look.
    """
    line = wrong.call.operation.line
    if line is not None and line.is_users and not line.called:
        return False
    return wrong.source or wrong.call.operation.is_collective or moves(wrong.call)
