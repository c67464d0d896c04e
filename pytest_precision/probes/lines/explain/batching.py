"""Tell operations that have the same rows in another batch, or fewer batches, from wrong ones."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_precision.probes.lines.explain.calls import ReferenceLookup, SingleCall
from pytest_precision.probes.lines.explain.following import Wrong
from pytest_precision.probes.lines.explain.kinds import kind_of

FOLLOWS_ROWS = ("inputs", "unknown")
"""Kinds of error that another batch of the same rows looks like."""


def unfollowed(wrong: Wrong, lookup: ReferenceLookup) -> str:
    """Return in words why no line is named where the sides go over other batches; empty if not."""
    return _batched_otherwise(wrong, lookup) or _fewer_backwards(wrong, lookup)


def _batched_otherwise(wrong: Wrong, lookup: ReferenceLookup) -> str:
    """Return in words how an operation batches other rows than the reference; empty if it does not.

    What it makes has a shape that no like of it in the reference has, with rows of the same length.
    Where all that it reads is right, row by row, it is the first to make another one.
    """
    call = wrong.call
    if lookup.by_row and call.read and not wrong.unlike:
        return ""
    if len(call.results) != 1 or kind_of(wrong, lookup).kind not in FOLLOWS_ROWS:
        return ""
    shape = call.results[0].shape
    likes = {other.results[0].shape for other in lookup.calls if _is_like(call, other)}
    alike = [other for other in likes if len(other) > 1 and other[-1:] == shape[-1:]]
    if len(shape) < 2 or shape in likes or not alike:
        return ""
    shapes = " or ".join(str([*other]) for other in sorted(alike)[:2])
    return (
        f"the sides batch their rows otherwise: {call.operation.name}{call.at} makes a tensor of "
        f"shape {[*shape]}, in the reference {shapes}; values are not followed through that"
    )


def _is_like(call: SingleCall, other: SingleCall) -> bool:
    ours, theirs = call.operation, other.operation
    same = (ours.base, ours.module, ours.backward) == (theirs.base, theirs.module, theirs.backward)
    return same and len(other.results) == 1


def _fewer_backwards(wrong: Wrong, lookup: ReferenceLookup) -> str:
    """Return in words how often a step goes backward, where a gradient lacks what that adds to it.

    A loop that goes over fewer batches computes nothing wrong, and no operation is its line. Empty
    where the gradient lacks nothing, or the sides go backward equally often.
    """
    error = kind_of(wrong, lookup)
    lacked = error.reference if error.kind == "missing" else None
    if lacked is None or not lacked.operation.backward or lacked.base != "add":
        return ""
    step = wrong.call.step
    mine, theirs = (_backwards(calls, step) for calls in (wrong.calls, lookup.calls))
    if mine >= theirs:
        return ""
    at_step = f" at step {step}" if step else ""
    return (
        f"the candidate goes backward {_often(mine)}{at_step}, the reference {_often(theirs)}; "
        "what a loop does not go over shows in no operation"
    )


def _often(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _backwards(calls: Sequence[SingleCall], step: int) -> int:
    """Return how many backwards a step starts, each of which torch gives a gradient of ones."""
    starts = (call for call in calls if call.step == step and call.base == "ones_like")
    return sum(call.line is not None and call.line.called.endswith("backward") for call in starts)
