"""Find where the backward of one side ends, of a gradient that the other side alone has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_precision.parity.culprit import Culprit
from pytest_precision.probes.lines.explain import worded
from pytest_precision.probes.lines.explain.calls import ReferenceLookup, SingleCall, calls
from pytest_precision.probes.lines.explain.counterparts import all_same
from pytest_precision.probes.lines.explain.kind_words import ErrorKind
from pytest_precision.probes.lines.operations import OperationLog

NO_BACKWARD = "the reference runs a backward of it, the candidate does not"


def without_backward(
    candidate: Sequence[OperationLog], reference: Sequence[OperationLog], root: Path, step: int
) -> Culprit | None:
    """Return the operation of the candidate whose backward only the reference runs, if any.

    It is the last one in the forward, where the backward ends that goes on in the reference.

    Args:
        candidate: the logs of its ranks.
        reference: the logs of the reference's ranks.
        root: files are named relative to it.
        step: in which the candidate has no gradient.
    """
    lookup = ReferenceLookup(reference)
    for log in candidate:
        mine = [call for call in calls(log) if call.step == step]
        backwards = {call.line for call in mine if call.operation.backward}
        for call in lookup.calls:
            if not call.operation.backward or call.step != step or call.line in backwards:
                continue
            forwards = (c for c in lookup.calls if not c.operation.backward and c.step == step)
            likes = (_like(f, mine) for f in forwards if f.line == call.line)
            known_likes = [like for like in likes if like is not None]
            if known_likes:
                error = ErrorKind("missing", NO_BACKWARD, call)
                return worded.of_operation(known_likes[-1], error, root, rank=None)
    return None


def _like(call: SingleCall, others: Sequence[SingleCall]) -> SingleCall | None:
    """Return the forward operation that computes the same of the same values; None if none does."""
    for other in others:
        is_same = call.base == other.base and not other.operation.backward
        if is_same and call.read and all_same(call.read, other.read):
            return other
    return None
