"""Find the operations of one run that correspond to an operation of the other run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import NamedTuple

from pytest_precision.probes.lines.explain.calls import (
    ReferenceLookup,
    SingleCall,
    is_common,
    is_same,
    is_telling,
    last_maker,
    moves,
)
from pytest_precision.probes.lines.explain.following import Wrong
from pytest_precision.probes.lines.explain.source_lines import line_text
from pytest_precision.probes.lines.operations import GENERATOR, CodeLine, Constant, Value

NOTHING = Constant("", "nothing")
"""Stands for a constant that only the other side has."""

SUMS = frozenset({"add", "sub", "sum", "cat", "stack"})
"""Base names of operations whose order decides about the last bits of a sum."""

LITTLE_CHANGED = 0.7
"""Share of the characters that two forms of a line have in common."""

STEPS_BETWEEN = 3
"""Operations of the reference between a value and the one that the candidate lacks."""


def all_same(values: Sequence[Value], others: Sequence[Value]) -> bool:
    """Return whether two lists agree in order: values are equal, or one is a slice of the other."""
    return len(values) == len(others) and all(map(is_same, values, others))


def unlike_constants(call: SingleCall, other: SingleCall) -> list[tuple[Constant, Constant]]:
    """List constant arguments in which two operations differ, as pairs (`call`'s, `other`'s)."""
    pairs = zip_longest(call.constants, other.constants, fillvalue=NOTHING)
    return [(ours, theirs) for ours, theirs in pairs if ours != theirs]


def reads(call: SingleCall, value: Value) -> bool:
    """Return whether an operation reads a value, a part of it, or a value that contains it."""
    return any(is_same(read_value, value) for read_value in call.read)


def rivals(call: SingleCall, lookup: ReferenceLookup) -> list[SingleCall]:
    """Return the reference's operations of the same name that read a value that the call reads."""
    calls_by_id: dict[int, SingleCall] = {}
    for value in call.read:
        for other in lookup.readers[value.digest]:
            if other.base == call.base:
                calls_by_id[id(other)] = other
    return in_step(call.step, [*calls_by_id.values()])


def in_step(step: int, others: Sequence[SingleCall]) -> list[SingleCall]:
    """Return those of the reference's operations that belong to a train step; all if none do."""
    return [other for other in others if other.step == step] or [*others]


def is_changed_step(blamed: SingleCall, between: SingleCall, lookup: ReferenceLookup) -> bool:
    """Return whether a call does what the reference's call `between` does, with other constants.

    A line in a loop may have another constant in each turn. A turn that the reference runs alike
    stands for no other one, unless it leaves what it reads as it is, as x / 1 does.
    """
    if blamed.base != between.base or not is_like_line(blamed.line, between.line):
        return False
    read = {value.digest for value in blamed.read}
    voids = any(result.digest in read for result in blamed.results)
    return voids or not any(
        other.line == blamed.line
        and all_same(blamed.read, other.read)
        and not unlike_constants(blamed, other)
        for other in rivals(blamed, lookup)
    )


def is_like_line(line: CodeLine | None, other: CodeLine | None) -> bool:
    """Return whether two lines are one, or forms of one of which little is changed."""
    if line is None or other is None or line == other:
        return line == other
    ours, theirs = (line_text(each.file, each.line).strip() for each in (line, other))
    is_read = bool(ours) and bool(theirs) and line.file != other.file
    return is_read and SequenceMatcher(None, ours, theirs).ratio() >= LITTLE_CHANGED


def at_changed_line(call: SingleCall, lookup: ReferenceLookup) -> SingleCall | None:
    """Return the reference's first operation of the step at another form of a call's line."""
    others = {other.line: other for other in reversed(lookup.calls) if other.step == call.step}
    if call.line in others:
        return None
    forms = (other for line, other in others.items() if is_like_line(call.line, line))
    return min(forms, key=lambda other: other.number, default=None)


def is_at_line(call: SingleCall, other: SingleCall) -> bool:
    """Return whether two operations have one operator, line and step, and are known to have one."""
    return call.line is not None and call.line == other.line and _runs_operator_of(call, other)


def most_alike(call: SingleCall, lookup: ReferenceLookup) -> SingleCall | None:
    """Return the reference's operation of the same name that shares most inputs with `call`."""

    def shared(other: SingleCall) -> tuple[int, int, bool, int]:
        pairs = list(zip(call.read, other.read, strict=False))
        same = [mine for mine, theirs in pairs if is_same(mine, theirs)]
        telling = sum(not is_common(value) for value in same)
        return telling, len(same), other.line == call.line, -abs(other.number - call.number)

    sharing = [rival for rival in rivals(call, lookup) if any(shared(rival)[:2])]
    return max(sharing, key=shared, default=None)


def readers_between(value: Value, wrong: Wrong, lookup: ReferenceLookup) -> Iterator[SingleCall]:
    """Yield the reference's operations on `value` that lead to its counterpart of the wrong one.

    What the candidate runs at a line of both sides has its counterpart there, and is none of
    another line's.
    """
    call = wrong.call
    taken = {(rank_call.base, rank_call.line) for rank_call in wrong.calls} - {
        (call.base, call.line)
    }
    rest = [read_value for read_value in call.read if read_value.digest != value.digest]
    reached = [(first, first) for first in in_step(call.step, lookup.readers[value.digest])]
    for _ in range(STEPS_BETWEEN):
        following = []
        for first, last in reached:
            for result in last.results:
                if result.digest == value.digest or not is_telling(result):
                    continue
                for other in lookup.readers[result.digest]:
                    if other.number <= last.number:
                        continue
                    other_rest = [
                        read_value
                        for read_value in other.read
                        if read_value.digest != result.digest
                    ]
                    is_free = (other.base, other.line) not in taken
                    alike = is_free and other.base == call.base and all_same(rest, other_rest)
                    # Without other tensors, constants alone tell what an operation is for.
                    if alike and (rest or not unlike_constants(call, other)):
                        yield first
                    following.append((first, other))
        reached = following[:64]


def added_later(value: Value, after: SingleCall, lookup: ReferenceLookup) -> bool:
    """Return whether the reference, after the operation `after`, adds `value` to something."""
    readers = (reader for reader in lookup.readers[value.digest] if reader.number > after.number)
    return not is_common(value) and any(reader.base in SUMS for reader in readers)


def is_reordered(between: SingleCall, wrong: Wrong, lookup: ReferenceLookup) -> bool:
    """Return whether the candidate adds the same terms as the reference, in another order."""
    if not {between.base, wrong.call.base} <= SUMS:
        return False
    read_digests = {value.digest for value in wrong.call.read}
    later = {
        value.digest
        for call in wrong.calls
        if call.number > wrong.call.number and call.base in SUMS
        for value in call.read
    }
    terms = {term for value in between.read for term in _terms(value, lookup)} - read_digests
    return bool(terms) and terms <= later


def _terms(value: Value, lookup: ReferenceLookup) -> set[str]:
    """Return the hashes of the terms that a sum is made of, or a value's hash if it is no sum."""
    terms: set[str] = set()
    visited_digests: set[str] = set()
    left = [value.digest]
    while left:
        digest = left.pop()
        if digest in visited_digests:
            continue
        visited_digests.add(digest)
        makers = (maker for maker in lookup.makers.get(digest, ()) if maker.base in SUMS)
        read = next((maker.read for maker in makers if len(maker.read) > 1), ())
        left += [term.digest for term in read]
        if not read:
            terms.add(digest)
    return terms


def nearest_call(lacked: SingleCall, wrong: Wrong, lookup: ReferenceLookup) -> SingleCall | None:
    """Return the candidate's call that runs last before the wrong one in the place of `lacked`.

    It has the operator and the line of `lacked`. At another line, it stands in its place only if
    the candidate runs the operator as often in this step, on other tensors, such as copies.
    """
    ours, theirs = (
        [call for call in calls if _runs_operator_of(call, lacked)]
        for calls in (wrong.calls, lookup.calls)
    )
    before = [
        call
        for call in ours
        if call.number <= wrong.call.number and call.line is not None and call.line.is_users
    ]
    at_line = [call for call in before if is_like_line(call.line, lacked.line)]
    in_place = at_line or (before if len(ours) == len(theirs) else [])
    return max(in_place, key=lambda call: call.number, default=None)


def _runs_operator_of(call: SingleCall, other: SingleCall) -> bool:
    return (call.operation.name, call.step, call.operation.backward) == (
        *(other.operation.name, other.step, other.operation.backward),
    )


def maker_of_number(call: SingleCall, calls: Sequence[SingleCall]) -> SingleCall | None:
    """Return the operation that made the scalar with which a call's first input is filled."""
    value = call.read[0]
    number = value.storage, value.element
    maker = last_maker(
        calls, call.number, lambda output: (output.storage, output.element) == number
    )
    return maker if value.uniform else None


class Repeated(NamedTuple):
    """A value that an operation reads in one step, and the reference's like of it in an earlier.

    Attributes:
        value: that both read.
        earlier: the operation of the reference that reads it.
        instead: what the reference reads in its place in the step of the other.
        reader: that reads it there.
    """

    value: Value
    earlier: SingleCall
    instead: Value
    reader: SingleCall

    def is_state(self, lookup: ReferenceLookup) -> bool:
        """Return whether the value is one that steps go on with, in place of a batch of data."""
        place = next(v for v in self.earlier.read if is_same(v, self.value))
        if (place.storage, place.span) == (self.instead.storage, self.instead.span):
            return True
        writer = lookup.writer_of(self.instead, self.reader)
        if writer is None or not fetches(writer):
            return writer is not None
        return _is_of_update(writer, self.reader.step, lookup)


def _is_of_update(copy: SingleCall, step: int, lookup: ReferenceLookup) -> bool:
    """Return whether copies, such as gathered shards, are of what the step before has written."""
    while moves(copy) and len(copy.read) == 1:
        writer = lookup.writer_of(copy.read[0], copy)
        if writer is None:
            return False
        if not fetches(writer):
            return 0 < writer.step < step
        copy = writer
    return False


def read_again(call: SingleCall, lookup: ReferenceLookup) -> Repeated | None:
    """Return what an operation reads again that the reference has read in another step."""
    other = most_alike(call, lookup)
    if other is None or not call.step or len(other.read) != len(call.read):
        return None
    for mine, theirs in zip(call.read, other.read, strict=True):
        if is_same(mine, theirs) or is_common(mine):
            continue
        for reader in lookup.readers[mine.digest]:
            if (reader.base, reader.line) == (call.base, call.line) and reader.step != call.step:
                return Repeated(mine, reader, theirs, other)
    return None


def fetches(call: SingleCall) -> bool:
    """Return whether an operation draws numbers, or takes rows from where they lie."""
    drawn = all(value.storage == GENERATOR for value in call.read)
    return drawn or moves(call) or call.base == "index"
