"""Find errors whose operations all compute right values, as when one is stored to a wrong tensor.

A right value was put into the wrong tensor, or a script that resumes does not restore its state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from pytest_precision.probes.lines.explain.calls import (
    ReferenceLookup,
    SingleCall,
    calls,
    last_maker,
    last_writer,
    short,
)
from pytest_precision.probes.lines.explain.counterparts import read_again
from pytest_precision.probes.lines.explain.following import Wrong
from pytest_precision.probes.lines.explain.kind_words import ErrorKind
from pytest_precision.probes.lines.explain.kinds import kind_of
from pytest_precision.probes.lines.explain.named_values import name_by_memory
from pytest_precision.probes.lines.operations import (
    GENERATOR,
    CodeLine,
    Holding,
    OperationLog,
    Value,
)


def misplaced(
    candidate: Sequence[OperationLog], reference: Sequence[OperationLog], kind: str
) -> tuple[SingleCall, ErrorKind, int] | None:
    """Return the operation that gave a tensor another final value than in the reference, and how.

    Of the kind that differs first, it may have left what the reference has under no name, however
    the two sides name what they hold.

    Args:
        candidate: the logs of its ranks.
        reference: the logs of the reference's ranks.
        kind: of the tensor that differs first.

    Returns:
        the operation of the candidate, or the one of the reference that the candidate lacks; what
        it did otherwise; and the rank. None where all names hold the same.
    """
    for rank, (ours, theirs) in enumerate(zip(candidate, reference, strict=False)):
        for name, value, other in _unlike(ours, theirs):
            mine, expected = (_writer(log, v) for log, v in ((ours, value), (theirs, other)))
            if mine is not None:
                maker_words = "as it was before"
                if expected is not None:
                    maker_words = f"made by {expected.operation.name}{expected.at}"
                words = f"{name} is {_whose(value, ours)}, in the reference {maker_words}"
                return mine, ErrorKind("inputs", words, expected), rank
            if expected is not None:
                words = f"the reference writes {name} here, the candidate leaves it as it was"
                return expected, ErrorKind("missing", words, expected), rank
    return next(_out_of_place(candidate, reference, kind), None)


def _out_of_place(
    candidate: Sequence[OperationLog], reference: Sequence[OperationLog], kind: str
) -> Iterator[tuple[SingleCall, ErrorKind, int]]:
    """Yield operations that made final values of the candidate which the reference lacks."""
    left = {
        digest
        for log in reference
        for holding, value in log.left.items()
        if holding.kind == kind
        for digest in (value.digest, *value.pieces)
    }
    for rank, log in enumerate(candidate):
        for holding, value in log.left.items():
            strange = holding.kind == kind and not left.issuperset(value.pieces or (value.digest,))
            writer = _writer(log, value) if strange and value.digest not in left else None
            if writer is not None:
                words = (
                    f"{holding} is {_whose(value, log)}, which the reference does not keep there"
                )
                yield writer, ErrorKind("inputs", words), rank


def _unlike(ours: OperationLog, theirs: OperationLog) -> Iterator[tuple[Holding, Value, Value]]:
    """Yield name, candidate's and reference's value of tensors that differ at the run's end."""
    for name, value in ours.left.items():
        other = theirs.left.get(name)
        if other is not None and other.digest != value.digest and other.shape == value.shape:
            yield name, value, other


def _writer(log: OperationLog, value: Value) -> SingleCall | None:
    """Return the last operation that wrote a value, or a tensor containing it, to its memory."""

    def is_meant(output: Value) -> bool:
        return output.storage == value.storage and value.digest in (output.digest, *output.pieces)

    return last_maker([*calls(log)], len(log.operations), is_meant)


def _whose(value: Value, log: OperationLog) -> str:
    for name, initial_value in log.initial_values.items():
        if initial_value.digest == value.digest:
            return f"{name} as it was before"
    return "another value"


REPLACES_NOTHING = "the saved value does not replace the one that this line makes"

Key = tuple[str, CodeLine | None]
"""What tells the likes of an operation: its base name, and where it was called."""

Unrestored = Iterator[tuple[str, SingleCall | None, Wrong]]


def not_restored(
    wrong: Sequence[Wrong],
    chosen: Sequence[Wrong],
    candidate: Sequence[OperationLog],
    reference: Sequence[OperationLog],
    lookup: ReferenceLookup,
    kind: str,
) -> tuple[SingleCall, CodeLine, ErrorKind] | None:
    """Return the operation that lacks state which a resumed script did not load, and why.

    That is so of an operation whose like in the reference reads what it had before the restart, and
    of what was made before the script had loaded anything, and is still there.

    Args:
        wrong: all first wrong operations.
        chosen: those of them that lead to what differs.
        candidate: the logs of its ranks; of a restart, from the start of the script.
        reference: the logs of its ranks.
        lookup: the values of the reference.
        kind: of the tensor that differs first.
    """
    resumed = [origin for origin in wrong if candidate[origin.rank].restores]
    if resumed and _is_of_data(chosen[0], candidate, lookup):
        return None
    before = chosen[:1] if resumed else ()
    numbers = [origin for origin in resumed if kind_of(origin, lookup).kind == "constant"]
    tensors = [origin for origin in resumed if origin not in numbers]
    lacking = chain(
        _loss_scale(before if kind == "loss_scale" else ()),
        _kept_from_before(resumed, candidate, lookup),
        _lacking_reads(tensors, reference),
        _numbers(numbers, lookup),
        _made_before(before, candidate),
    )
    for reason, other, origin in lacking:
        last = candidate[origin.rank].restores[-1]
        if last.line is not None:
            words = f"{reason}; the last line that loads is {short(last.line)}, by {last.option}"
            return origin.call, last.line, ErrorKind("missing", words, other)
    return None


def _is_of_data(first: Wrong, candidate: Sequence[OperationLog], lookup: ReferenceLookup) -> bool:
    """Return whether a first wrong value is of other data, which a checkpoint does not hold.

    Its order was drawn anew, by a draw that the reference has made in an earlier step alone, or its
    batch is that of an earlier step. What is drawn before the last load is state, such as weights.
    """
    if first.draws and first.call.number < candidate[first.rank].restores[-1].before:
        return False
    if first.draws:
        likes = [call for call in lookup.calls if _key(call) == _key(first.call)]
        return bool(likes) and all(call.step != lookup.last_step for call in likes)
    again = read_again(first.call, lookup)
    return again is not None and not again.is_state(lookup)


def _kept_from_before(
    wrong: Sequence[Wrong], candidate: Sequence[OperationLog], lookup: ReferenceLookup
) -> Unrestored:
    """Yield operations that made state before the last load, which is read after it all the same.

    The reference has read it in an earlier step.
    """
    for origin in wrong:
        again = read_again(origin.call, lookup)
        if again is None or not again.is_state(lookup):
            continue
        maker = last_writer(origin.calls, origin.call.number, again.value.storage)
        if maker is not None and maker.number < candidate[origin.rank].restores[-1].before:
            yield REPLACES_NOTHING, again.earlier, replace(origin, call=maker)


def _lacking_reads(wrong: Sequence[Wrong], reference: Sequence[OperationLog]) -> Unrestored:
    """Yield operations for which only the reference reads state from before the restart, or data.

    Such state was made before the restart, or is data.
    """
    if not wrong:
        return
    read = {
        key: (readings, log) for log in reference for key, readings in _reads_of_before(log).items()
    }
    for origin in wrong:
        for key in _keys(origin):
            our_digests = {
                value.digest for call in origin.calls if _key(call) == key for value in call.read
            }
            readings, log = read.get(key, ((), OperationLog()))
            for other, value in readings:
                if value.digest not in our_digests:
                    reason = f"the reference reads {_what(value, log)} from before the restart"
                    by = "" if origin.call.base == other.base else f" in {other.operation.name}"
                    yield reason + by, other, origin


def _keys(wrong: Wrong) -> Iterator[Key]:
    """Yield keys by which to find an operation, or the reader of its result, in the reference."""
    yield _key(wrong.call)
    storages = {value.storage for value in wrong.call.results}
    for call in wrong.calls[wrong.calls.index(wrong.call) + 1 :]:
        if any(value.storage in storages for value in call.read):
            yield _key(call)
            return


def _reads_of_before(log: OperationLog) -> dict[Key, list[tuple[SingleCall, Value]]]:
    """Return operations of the last step that read a value which none of it has written before."""
    written: set[int] = set()
    readings: dict[Key, list[tuple[SingleCall, Value]]] = defaultdict(list)
    start = log.steps[-2].operations if len(log.steps) > 1 else 0
    for call in calls(log):
        if call.number < start:
            continue
        readings[_key(call)] += [
            (call, value) for value in call.read if value.storage not in written
        ]
        written |= {value.storage for value in call.results}
    return readings


def _key(call: SingleCall) -> Key:
    return call.base, call.line


def _what(value: Value, log: OperationLog) -> str:
    if value.storage == GENERATOR:
        return "the state of a generator"
    return f"a {value.dtype} tensor of shape {[*value.shape]}{name_by_memory(value, log)}"


def _made_before(chosen: Sequence[Wrong], candidate: Sequence[OperationLog]) -> Unrestored:
    """Yield wrong operations that run before the script's last line that loads a checkpoint."""
    for origin in chosen:
        if origin.call.number < candidate[origin.rank].restores[-1].before:
            yield REPLACES_NOTHING, None, origin


def _loss_scale(chosen: Sequence[Wrong]) -> Unrestored:
    """Yield the operations on a loss scale that a scaler has made after a restart."""
    for origin in chosen:
        yield "the loss scale starts anew", None, origin


def _numbers(wrong: Sequence[Wrong], lookup: ReferenceLookup) -> Unrestored:
    """Yield operations whose constant arguments start anew after a restart, such as a counter."""
    for origin in wrong:
        error = kind_of(origin, lookup)
        yield f"a counter or setting starts anew: {error.words}", error.reference, origin
