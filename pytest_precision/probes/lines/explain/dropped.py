"""Find a result that the candidate drops and the reference reads."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_precision.probes.lines.explain.calls import ReferenceLookup, SingleCall, is_common
from pytest_precision.probes.lines.explain.counterparts import all_same, in_step, rivals
from pytest_precision.probes.lines.explain.following import Wrong
from pytest_precision.probes.lines.explain.kind_words import ErrorKind


def dropped_result(wrong: Wrong, lookup: ReferenceLookup) -> ErrorKind | None:
    """Return the error kind where a backward lacks what a dropped result would give it; else None.

    A function that hands a value on, and a gradient of its own back, makes no other value. So its
    result is told by its memory, which the candidate never reads and the reference does.
    """
    step = wrong.call.step
    mine = [call for call in wrong.calls if call.step == step]
    if not wrong.call.operation.backward or not _backward_lines(
        in_step(step, lookup.calls)
    ) - _backward_lines(mine):
        return None
    before = [call for call in mine if call.number < wrong.call.number]
    for call in reversed(before):
        reader = _reader_of_like(call, lookup) if _is_dropped(call, mine) else None
        if reader is not None:
            reading = f"{reader.operation.name}{reader.at}"
            words = f"nothing reads its result, which {reading} reads in the reference"
            return ErrorKind("missing", words, reader, None, call)
    return None


def _backward_lines(calls: Sequence[SingleCall]) -> set[object]:
    return {call.line for call in calls if call.operation.backward}


def _is_dropped(call: SingleCall, calls: Sequence[SingleCall]) -> bool:
    """Return whether a line of the user's makes a new tensor that nothing reads or writes again.

    A library may make one for itself in what that line calls, such as a copy for its own log.
    """
    line = call.line
    by_user = line is not None and line.is_users and not line.called
    if not by_user or call.operation.backward or not call.results:
        return False
    if any(is_common(value) for value in (*call.read, *call.results)):
        return False
    new = {value.storage for value in call.results} - {value.storage for value in call.read}
    return bool(new) and not any(_touches(other, new) for other in calls if other is not call)


def _reader_of_like(call: SingleCall, lookup: ReferenceLookup) -> SingleCall | None:
    """Return what reads the result of the reference's operation on the same values, if anything."""
    for like in rivals(call, lookup):
        storages = {value.storage for value in like.results}
        is_same = like.step == call.step and all_same(call.read, like.read)
        later = (other for other in lookup.calls if other.number > like.number)
        reader = next((other for other in later if _touches(other, storages)), None)
        if is_same and reader is not None:
            return reader
    return None


def _touches(call: SingleCall, storages: set[int]) -> bool:
    return any(value.storage in storages for value in (*call.read, *call.results))
