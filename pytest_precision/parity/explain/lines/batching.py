"""Tell operations that have the same rows in another batch from wrong ones."""

from __future__ import annotations

from pytest_precision.parity.explain.lines.calls import ReferenceLookup, SingleCall
from pytest_precision.parity.explain.lines.following import Wrong
from pytest_precision.parity.explain.lines.kinds import kind_of

FOLLOWS_ROWS = ("inputs", "unknown")
"""Kinds of error that another batch of the same rows looks like."""


def batched_otherwise(wrong: Wrong, lookup: ReferenceLookup) -> str:
    """Return in words how an operation batches other rows than the reference; empty if it does not.

    What it makes has a shape that no like of it in the reference has, with rows of the same length.
    """
    call = wrong.call
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
