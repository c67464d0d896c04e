"""Decide which operations cannot be blamed since an operation log ends early, and say so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_precision.parity.explain.lines.calls import SingleCall, is_common, moves
from pytest_precision.parity.explain.lines.following import Wrong
from pytest_precision.parity.explain.lines.known import Known, shapes_of
from pytest_precision.trace.operations import OperationLog


def cut_of(logs: Sequence[OperationLog]) -> int:
    """Return after how many operations the shortest log was cut off; 0 if all logs are complete."""
    return min((log.cut for log in logs if log.cut), default=0)


def is_beyond(wrong: Wrong, known: Known, cut: int) -> bool:
    """Return whether the reference, whose log was cut, may run an operation after the log's end.

    That is so of an operation as late as its end, and of one that reads what the reference has
    made and not yet read: sides that need other numbers of operations get there sooner.

    Args:
        wrong: an operation of the candidate.
        known: values of the reference.
        cut: where its log ends; 0 if it is whole.
    """
    if not cut:
        return False
    telling = [one for one in wrong.call.read if one in known and not is_common(one)]
    unread = any(not known.readers[one.digest] for one in telling)
    return unread or wrong.call.number >= cut


def unnamed(candidate: Sequence[OperationLog], reference: Sequence[OperationLog]) -> str:
    """Say why no operation of the candidate is named as the cause of the error."""
    if hold_other_pieces(candidate, reference):
        return "No line is named: the sides hold other pieces of the tensors"
    cut = cut_of(reference)
    if cut:
        return (
            f"No line is named: the reference's log ends at the limit of {cut} operations, and "
            "what the candidate makes later cannot be held against it"
        )
    cut = cut_of(candidate)
    if cut:
        return f"No line is named: the first {cut} operations made values that the reference has"
    return "No line is named: every operation made values that the reference has"


def hold_other_pieces(candidate: Sequence[OperationLog], reference: Sequence[OperationLog]) -> bool:
    """Return whether candidate and reference split weights or optimizer state into different
    pieces.

    They do if a tensor has another shape there, or weights have other names, as flat ones do.

    Args:
        candidate: the logs of its ranks.
        reference: the logs of the reference's ranks.
    """
    ours, theirs = shapes_of(candidate), shapes_of(reference)
    unlike = any(ours[held] != theirs[held] for held in ours.keys() & theirs.keys())
    alone = (ours.keys() - theirs.keys(), theirs.keys() - ours.keys())
    return unlike or all(any(held.kind == "param" for held in side) for side in alone)


def tellable(wrong: Sequence[Wrong]) -> list[Wrong]:
    """Return the wrong operations that can be told from right ones although sharding differs.

    What is right up to there comes first. Where operations have no counterpart, one of them is
    named if they belong to one line, since nothing tells which of them is right.
    """
    found = []
    for one in sorted(wrong, key=lambda one: bool(one.suspects or one.cut_otherwise)):
        if one.suspects or one.cut_otherwise:
            suspect = None if one.cut_otherwise else _only_line(one)
            if suspect is not None:
                found.append(replace(one, call=suspect, unlike=(), source=False))
        elif not _is_of_pieces(one):
            found.append(one)
    return found


def _only_line(wrong: Wrong) -> SingleCall | None:
    """Return the first suspected operation if all of them belong to one source line; else None.

    Where all of them only move values, the last one has put a value where it does not belong.
    What a library does for a line of the user's belongs to that line; what it does by itself is not
    held against it where there is one.
    """
    computed = [call for call in wrong.suspects if not moves(call)] or [wrong.call]
    by_users = [call for call in computed if call.line is not None and call.line.own]
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
    if line is not None and line.own and not line.called:
        return False
    return wrong.source or wrong.call.operation.is_collective or moves(wrong.call)
