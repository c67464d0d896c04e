"""Find what the reference writes in place where the candidate leaves a tensor as it was made."""

from __future__ import annotations

from pytest_precision.probes.lines.explain.calls import (
    ReferenceLookup,
    SingleCall,
    is_common,
    last_writer,
)
from pytest_precision.probes.lines.explain.following import Wrong
from pytest_precision.probes.lines.explain.kind_words import ErrorKind


def unwritten(wrong: Wrong, lookup: ReferenceLookup) -> ErrorKind | None:
    """Return the error kind of a call on memory that the reference writes once more; else None.

    What it reads may be a part of that memory, such as shifted labels, which has no name and which
    nothing has made. What is in it was made by the same operation on both sides.
    """
    call = wrong.call
    for value in call.read:
        maker = last_writer(wrong.calls, call.number, value.storage)
        if maker is None or maker.step != call.step or maker.operation.backward:
            continue
        for result in maker.results:
            if result.storage != value.storage or is_common(result):
                continue
            write = _later_write(maker, result.digest, wrong, lookup)
            if write is not None:
                by = f"{write.operation.name}{write.by}"
                words = f"the reference first writes to what it reads, by {by}"
                return ErrorKind("missing", words, write)
    return None


def _later_write(
    maker: SingleCall, digest: str, wrong: Wrong, lookup: ReferenceLookup
) -> SingleCall | None:
    """Return the reference's next write to what its like of `maker` made; None if there is none.

    The candidate runs nothing at its line, and the like of the wrong operation reads the result.
    """
    lines = {call.line for call in wrong.calls}
    for like in lookup.makers.get(digest, ()):
        if (like.base, like.step) != (maker.base, maker.step):
            continue
        storages = {result.storage for result in like.results if result.digest == digest}
        later = [c for c in lookup.calls if c.number > like.number and c.step == like.step]
        for place, call in enumerate(later):
            if not call.operation.is_in_place or not storages & {v.storage for v in call.results}:
                continue
            is_read = any(
                reader.base == wrong.call.base and storages & {v.storage for v in reader.read}
                for reader in later[place + 1 :]
            )
            is_lacking = call.line is not None and call.line not in lines
            return call if is_read and is_lacking and _runs_more(lookup, call, wrong) else None
    return None


def _runs_more(lookup: ReferenceLookup, write: SingleCall, wrong: Wrong) -> bool:
    """Return whether the reference runs more operations like a write: else it is not left out."""
    ours, theirs = (
        sum((call.base, call.step) == (write.base, write.step) for call in calls)
        for calls in (wrong.calls, lookup.calls)
    )
    return ours < theirs
