"""Find the operations of one run that correspond to an operation of the other run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from pytest_precision.parity.explain.lines.calls import (
    Known,
    SingleCall,
    is_common,
    is_same,
    is_telling,
    last_maker,
)
from pytest_precision.parity.explain.lines.following import Wrong
from pytest_precision.trace.operations import Constant, Value

NOTHING = Constant("", "nothing")
"""Stands for a constant that only the other side has."""

SUMS = frozenset({"add", "sub", "sum", "cat", "stack"})
"""Base names of operations whose order decides about the last bits of a sum."""

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
    return any(is_same(one, value) for one in call.read)


def rivals(call: SingleCall, known: Known) -> list[SingleCall]:
    """Return the reference's operations of the same name that read a value that the call reads."""
    found: dict[int, SingleCall] = {}
    for value in call.read:
        for other in known.readers[value.digest]:
            if other.base == call.base:
                found[id(other)] = other
    return [*found.values()]


def is_changed_step(blamed: SingleCall, between: SingleCall, known: Known) -> bool:
    """Return whether a call does what the reference's call `between` does, with other constants.

    A line in a loop may have another constant in each turn. A turn that the reference runs alike
    stands for no other one, unless it leaves what it reads as it is, as x / 1 does.
    """
    if (blamed.base, blamed.line) != (between.base, between.line):
        return False
    read = {value.digest for value in blamed.read}
    voids = any(result.digest in read for result in blamed.results)
    return voids or not any(
        other.line == blamed.line
        and all_same(blamed.read, other.read)
        and not unlike_constants(blamed, other)
        for other in rivals(blamed, known)
    )


def most_alike(call: SingleCall, known: Known) -> SingleCall | None:
    """Return the reference's operation of the same name that shares most inputs with `call`."""

    def shared(other: SingleCall) -> tuple[int, int, int]:
        pairs = list(zip(call.read, other.read, strict=False))
        same = [mine for mine, theirs in pairs if is_same(mine, theirs)]
        telling = sum(not is_common(value) for value in same)
        return telling, len(same), -abs(other.number - call.number)

    sharing = [one for one in rivals(call, known) if any(shared(one)[:2])]
    return max(sharing, key=shared, default=None)


def readers_between(value: Value, call: SingleCall, known: Known) -> Iterator[SingleCall]:
    """Yield the reference's operations on `value` that lead to its counterpart of `call`."""
    rest = [one for one in call.read if one.digest != value.digest]
    reached = [(first, first) for first in known.readers[value.digest]]
    for _ in range(STEPS_BETWEEN):
        following = []
        for first, last in reached:
            for result in last.results:
                if result.digest == value.digest or not is_telling(result):
                    continue
                for other in known.readers[result.digest]:
                    if other.number <= last.number:
                        continue
                    own = [one for one in other.read if one.digest != result.digest]
                    alike = other.base == call.base and all_same(rest, own)
                    # Without other tensors, constants alone tell what an operation is for.
                    if alike and (rest or not unlike_constants(call, other)):
                        yield first
                    following.append((first, other))
        reached = following[:64]


def added_later(value: Value, after: SingleCall, known: Known) -> bool:
    """Return whether the reference, after the operation `after`, adds `value` to something."""
    readers = (one for one in known.readers[value.digest] if one.number > after.number)
    return not is_common(value) and any(one.base in SUMS for one in readers)


def is_reordered(between: SingleCall, wrong: Wrong, known: Known) -> bool:
    """Return whether the candidate adds the same terms as the reference, in another order."""
    if not {between.base, wrong.call.base} <= SUMS:
        return False
    given = {value.digest for value in wrong.call.read}
    later = {
        value.digest
        for call in wrong.calls
        if call.number > wrong.call.number and call.base in SUMS
        for value in call.read
    }
    terms = {one for value in between.read for one in _terms(value, known)} - given
    return bool(terms) and terms <= later


def _terms(value: Value, known: Known) -> set[str]:
    """Return the hashes of the terms that a sum is made of, or a value's hash if it is no sum."""
    found: set[str] = set()
    seen: set[str] = set()
    left = [value.digest]
    while left:
        digest = left.pop()
        if digest in seen:
            continue
        seen.add(digest)
        makers = (one for one in known.makers.get(digest, ()) if one.base in SUMS)
        read = next((one.read for one in makers if len(one.read) > 1), ())
        left += [one.digest for one in read]
        if not read:
            found.add(digest)
    return found


def nearest_call(lacked: SingleCall, wrong: Wrong) -> SingleCall | None:
    """Return the candidate's call of `lacked`'s operator that runs nearest to the wrong one."""
    same = [
        call
        for call in wrong.calls
        if call.operation.name == lacked.operation.name
        and call.operation.backward == lacked.operation.backward
        and call.line is not None
        and call.line.is_users
    ]
    return min(same, key=lambda one: abs(one.number - wrong.call.number), default=None)


def maker_of_number(call: SingleCall, calls: Sequence[SingleCall]) -> SingleCall | None:
    """Return the operation that made the scalar with which a call's first input is filled."""
    value = call.read[0]
    number = value.storage, value.element
    made = last_maker(calls, call.number, lambda one: (one.storage, one.element) == number)
    return made if value.uniform else None
