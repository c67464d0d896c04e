"""Find state that a training script does not restore when it resumes from a checkpoint."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain

from pytest_precision.parity.explain.lines.calls import SingleCall, calls, short
from pytest_precision.parity.explain.lines.following import Wrong
from pytest_precision.parity.explain.lines.kinds import ErrorKind, kind_of
from pytest_precision.parity.explain.lines.known import Known
from pytest_precision.trace.operations import GENERATOR, CodeLine, OperationLog, Value

Key = tuple[str, CodeLine | None]
"""What tells the likes of an operation: its base name, and where it was called."""

Unrestored = Iterator[tuple[str, SingleCall | None, Wrong]]


def not_restored(
    wrong: Sequence[Wrong],
    chosen: Sequence[Wrong],
    candidate: Sequence[OperationLog],
    reference: Sequence[OperationLog],
    known: Known,
) -> tuple[SingleCall, CodeLine, ErrorKind] | None:
    """Return the operation that lacks state which a resumed script did not load, and why.

    That is so of an operation whose like in the reference reads what it had before the restart, and
    of what was made before the script had loaded anything, and is still there.

    Args:
        wrong: all first wrong operations.
        chosen: those of them that lead to what differs.
        candidate: the logs of its ranks; of a restart, from the start of the script.
        reference: the logs of its ranks.
        known: the values of the reference.
    """
    resumed = [one for one in wrong if candidate[one.rank].restores]
    before = chosen[:1] if resumed else ()
    numbers = [one for one in resumed if kind_of(one, known).kind == "constant"]
    tensors = [one for one in resumed if one not in numbers]
    found = _read(tensors, reference), _numbers(numbers, known), _made_before(before, candidate)
    for what, other, one in chain(*found):
        last = candidate[one.rank].restores[-1]
        if last.line is not None:
            words = f"{what}; the last line that loads is {short(last.line)}, by {last.what}"
            return one.call, last.line, ErrorKind("missing", words, other)
    return None


def _read(wrong: Sequence[Wrong], reference: Sequence[OperationLog]) -> Unrestored:
    """Yield operations for which the reference reads state that the resumed script lacks.

    Such state was made before the restart, or is data.
    """
    if not wrong:
        return
    read = {key: found for log in reference for key, found in _reads_of_before(log).items()}
    for one in wrong:
        for key in _keys(one):
            own = {value.digest for call in one.calls if _key(call) == key for value in call.read}
            for other, value in read.get(key, ()):
                if value.digest not in own:
                    what = f"the reference reads {_what(value)} from before the restart"
                    by = "" if one.call.base == other.base else f" in {other.operation.name}"
                    yield what + by, other, one


def _keys(wrong: Wrong) -> Iterator[Key]:
    """Yield keys by which to find a wrong operation, and its first reader, in the reference."""
    yield _key(wrong.call)
    made = {value.storage for value in wrong.call.results}
    for call in wrong.calls[wrong.calls.index(wrong.call) + 1 :]:
        if any(value.storage in made for value in call.read):
            yield _key(call)
            return


def _reads_of_before(log: OperationLog) -> dict[Key, list[tuple[SingleCall, Value]]]:
    """Return operations that read a value which no operation of the log has written before."""
    written: set[int] = set()
    found: dict[Key, list[tuple[SingleCall, Value]]] = defaultdict(list)
    for call in calls(log.operations):
        found[_key(call)] += [(call, one) for one in call.read if one.storage not in written]
        written |= {one.storage for one in call.results}
    return found


def _key(call: SingleCall) -> Key:
    return call.base, call.line


def _what(value: Value) -> str:
    if value.storage == GENERATOR:
        return "the state of a generator"
    return f"a {value.dtype} tensor of shape {[*value.shape]}"


def _made_before(chosen: Sequence[Wrong], candidate: Sequence[OperationLog]) -> Unrestored:
    """Yield wrong operations that run before the script's last line that loads a checkpoint."""
    for one in chosen:
        if one.call.number < candidate[one.rank].restores[-1].before:
            yield "the saved value does not replace the one that this line makes", None, one


def _numbers(wrong: Sequence[Wrong], known: Known) -> Unrestored:
    """Yield operations whose constant arguments start anew after a restart, such as a counter."""
    for one in wrong:
        error = kind_of(one, known)
        yield f"a counter or setting starts anew: {error.words}", error.reference, one
