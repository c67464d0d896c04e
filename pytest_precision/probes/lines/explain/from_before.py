"""Find values of an earlier step that one side reads again, where the other makes them anew."""

from __future__ import annotations

from pytest_precision.probes.lines.explain.calls import (
    ReferenceLookup,
    SingleCall,
    is_same,
    last_writer,
    moves,
)
from pytest_precision.probes.lines.explain.counterparts import most_alike, read_again
from pytest_precision.probes.lines.explain.following import Wrong
from pytest_precision.probes.lines.explain.kind_words import ErrorKind
from pytest_precision.probes.lines.explain.named_values import parameters_of
from pytest_precision.probes.lines.operations import Value


def of_other_step(wrong: Wrong, lookup: ReferenceLookup) -> ErrorKind | None:
    """Return the error kind of a call that reads what the reference reads in another step."""
    call = wrong.call
    again = read_again(call, lookup)
    if again is None:
        return None
    step = f"that of step {again.earlier.step}"
    if not again.is_state(lookup):
        tensor_words = f"{again.value.dtype} tensor of shape {[*again.value.shape]}"
        words = f"the {tensor_words} that it reads at step {call.step} is {step} in the reference"
        return ErrorKind("data", words, most_alike(call, lookup))
    maker = _maker_before(again.value, wrong)
    if maker is None:
        words = f"what it reads at step {call.step} is stale: {step} in the reference"
        return ErrorKind("inputs", words, most_alike(call, lookup))
    by_user = maker.line is not None and maker.line.is_users
    source = _source_of(maker, wrong, lookup)
    words = (
        f"what it makes{source and f' of {source}'} at step {maker.step} is stale where "
        f"{call.operation.name}{call.at} reads it at step {call.step}: "
        f"{source or 'its source'} has changed since, and the reference makes it anew"
    )
    return ErrorKind("inputs", words, most_alike(call, lookup), None, maker if by_user else None)


def _maker_before(value: Value, wrong: Wrong) -> SingleCall | None:
    """Return the candidate's operation of an earlier step that made a value, before any casts."""
    step, number = wrong.call.step, wrong.call.number
    while True:
        maker = last_writer(wrong.calls, number, value.storage)
        if maker is None or maker.step != step:
            return maker
        if len(maker.read) != 1:
            return None
        value, number = maker.read[0], maker.number


def _source_of(maker: SingleCall, wrong: Wrong, lookup: ReferenceLookup) -> str:
    """Return the name of the parameter that an operation copies or gathers; empty if none is."""
    copy: SingleCall | None = maker
    while copy is not None and len(copy.read) == 1:
        names = parameters_of(copy.operation.module, copy.read, lookup)
        if len(names) == 1:
            return names.pop()
        copy = last_writer(wrong.calls, copy.number, copy.read[0].storage) if moves(copy) else None
    return ""


def older_in_reference(wrong: Wrong, lookup: ReferenceLookup) -> str:
    """Return in words that the reference reads what it made before this step; empty if it does not.

    Its log has what it reads there, and no operation that makes it.
    """
    step = wrong.call.step
    written = {value.storage for value in wrong.call.results}
    later = (call for call in wrong.calls if call.number > wrong.call.number)
    reader = next((c for c in later if any(v.storage in written for v in c.read)), None)
    other = None if reader is None else most_alike(reader, lookup)
    if reader is None or other is None or len(other.read) != len(reader.read) or not step:
        return ""
    for mine, theirs in zip(reader.read, other.read, strict=True):
        is_older = not lookup.makers.get(theirs.digest) and not is_same(mine, theirs)
        is_named = theirs.digest in lookup.names_at_start
        if mine.storage in written and is_older and not is_named and mine.dtype == theirs.dtype:
            return (
                f"the reference makes none at step {step}: {other.operation.name}{other.at} reads "
                "one there that is stale"
            )
    return ""
