"""Find the line that takes a value out of the graph of a backward, where only one side does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_precision.probes.lines.explain.calls import ReferenceLookup, SingleCall, last_writer
from pytest_precision.probes.lines.explain.following import Wrong
from pytest_precision.probes.lines.explain.kind_words import ErrorKind
from pytest_precision.probes.lines.operations import DETACH, CodeLine

BACK_TO_MAKERS = 3
"""Operations before a detached value whose backward is the first to lack its gradient."""


def detached_by_one(wrong: Wrong, lookup: ReferenceLookup) -> ErrorKind | None:
    """Return the error kind where one side alone detaches a value; None if that explains nothing.

    It explains a backward that goes wrong at what made this value, and one that is not to be found
    on the side that detaches it.
    """
    step = wrong.call.step
    mine, theirs = (_of_step(calls, step) for calls in (wrong.calls, lookup.calls))
    before = [call for call in mine if call.number < wrong.call.number]
    if not any(call.operation.backward for call in (*before, wrong.call)):
        return None  # a forward computes the same of it
    for detach in _beside(before, theirs):
        if detach.read[0] in lookup and _explains(detach, wrong, mine, theirs):
            words = "it cuts the gradient off here, the reference passes it on"
            return ErrorKind("extra", words, None, None, detach)
    shared = {value.digest for call in before for value in (*call.read, *call.results)}
    for detach in _beside(theirs, mine):
        if _detached(detach) in shared and _explains(detach, wrong, theirs, mine):
            words = f"the reference cuts the gradient off{detach.at}, the candidate passes it on"
            return ErrorKind("missing", words, detach)
    return None


def _of_step(calls: Sequence[SingleCall], step: int) -> list[SingleCall]:
    return [call for call in calls if call.step == step]


def _beside(calls: Sequence[SingleCall], others: Sequence[SingleCall]) -> Iterator[SingleCall]:
    """Yield the calls that detach a value where the other side does not, at that line or another.

    What both sides do at the same line is put together first.
    """
    detaching, likes = (
        [call for call in side if call.operation.name == DETACH] for side in (calls, others)
    )
    places = {(_detached(call), call.line) for call in likes}
    shared = [call for call in detaching if (_detached(call), call.line) in places]
    left = Counter(map(_detached, likes))
    for call in (*shared, *(call for call in detaching if call not in shared)):
        left[_detached(call)] -= 1
        if left[_detached(call)] < 0:
            yield call


def _detached(call: SingleCall) -> str:
    return call.read[0].digest


def _explains(
    detach: SingleCall,
    wrong: Wrong,
    calls: Sequence[SingleCall],
    others: Sequence[SingleCall],
) -> bool:
    """Return whether a backward that is wrong, or is missing, is that of what made the value.

    What adds up the gradients of a value is the backward of what reads it.
    """
    lines = {*_lines_of_makers(detach, calls)}
    if not wrong.call.operation.backward:
        return _has_backward(others, lines) and not _has_backward(calls, lines)
    if wrong.call.base == "add":
        lines |= {call.line for call in others if _detached(detach) in _read(call)}
    return wrong.call.line in lines


def _read(call: SingleCall) -> set[str]:
    return {value.digest for value in call.read}


def _has_backward(calls: Sequence[SingleCall], lines: set[CodeLine | None]) -> bool:
    return any(call.operation.backward and call.line in lines for call in calls)


def _lines_of_makers(detach: SingleCall, calls: Sequence[SingleCall]) -> Iterator[CodeLine | None]:
    reached = [(value, detach.number) for value in detach.read]
    for _ in range(BACK_TO_MAKERS):
        makers = [last_writer(calls, number, value.storage) for value, number in reached]
        yield from (maker.line for maker in makers if maker is not None and maker.line is not None)
        reached = [(value, maker.number) for maker in makers if maker for value in maker.read]
