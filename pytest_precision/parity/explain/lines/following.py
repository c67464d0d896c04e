"""Following: which operations of one rank of the candidate made wrong values out of right ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pytest_precision.parity.explain.lines.calls import SingleCall, calls, is_common, moves
from pytest_precision.parity.explain.lines.known import Known
from pytest_precision.trace.operations import OperationLog, Value

MOST_ROOTS = 8
"""First wrong operations that a value is followed back to."""

Roots = frozenset[int]
RIGHT: Roots = frozenset()


class Memory(NamedTuple):
    """What lies in a storage.

    Attributes:
        roots: the operations that made it wrong.
        elements: how many elements they wrote.
        mover: the last operation that put right values into an order that the reference has not.
    """

    roots: Roots
    elements: int
    mover: int | None = None


@dataclass(frozen=True)
class Wrong:
    """An operation that made a wrong value, although it read none.

    Attributes:
        call: the operation.
        rank: of the candidate.
        unlike: the values that it read and that the reference has never held in this form.
        source: whether the value was not made here, but given.
        collectives: number of collectives that the rank had made by then.
        calls: of the rank.
        lasts: whether the wrong value reaches what the operation of the sequence has left.
    """

    call: SingleCall
    rank: int
    unlike: tuple[Value, ...]
    source: bool
    collectives: int
    calls: tuple[SingleCall, ...]
    lasts: bool


class Follower:
    """Follows values through the log of one rank.

    Args:
        log: of the candidate's rank.
        known: values of the reference.
        kind: of what differs first; wrong values are followed to that of what is left.
    """

    def __init__(self, log: OperationLog, known: Known, kind: str = "") -> None:
        self._log, self._known = log, known
        unlike = {held: value for held, value in log.left.items() if value not in known}
        of_kind = [value for held, value in unlike.items() if held.kind == kind]
        # No step leaves its losses, and what makes a wrong one may have no part in its backward.
        self._all_last = kind == "loss" and not of_kind
        self._wanted = of_kind or [*unlike.values()]
        self._calls = tuple(calls(log.operations))
        self._memory: dict[int, Memory] = {}
        self._written = {value.storage for value in log.given.values() if value in known}
        self._found: dict[int, tuple[tuple[Value, ...], bool, int]] = {}

    def wrong(self, rank: int) -> Iterator[Wrong]:
        """Yield the first wrong operations that do not follow from each other, in order."""
        collectives = 0
        for place, call in enumerate(self._calls):
            self._follow(place, call, collectives)
            collectives += call.operation.is_collective
        lasting = self._lasting(collectives)
        for place, (unlike, source, before) in sorted(self._found.items()):
            lasts = self._all_last or place in lasting
            yield Wrong(self._calls[place], rank, unlike, source, before, self._calls, lasts)

    def _follow(self, place: int, call: SingleCall, collectives: int) -> None:
        roots: Roots = RIGHT
        unlike: list[Value] = []
        source = False
        for value in call.read:
            roots |= self._roots(value)
            if value not in self._known and not self._roots(value):
                unlike.append(value)
                source = source or (value.storage not in self._written and value.storage >= 0)
        wrong = [value for value in call.results if value not in self._known]
        mover = None
        if wrong and not roots and not _is_constant(call):
            if moves(call) and not source:
                mover = place
            else:
                self._found[place] = tuple(unlike), source, collectives
                roots = frozenset((place,))
        for value in call.read:
            if value in self._known and not is_common(value) and value.storage in self._memory:
                self._right_again(value, call)
        for value in call.results:
            self._write(value, roots, mover)

    def _right_again(self, value: Value, call: SingleCall) -> None:
        """Forget what was wrong in memory whose value is right, where it is overwritten now."""
        if any(result.storage == value.storage for result in call.results):
            del self._memory[value.storage]

    def _roots(self, value: Value) -> Roots:
        """Return where a value went wrong; nothing where it did not."""
        memory = self._memory.get(value.storage)
        if memory is None or (value in self._known and not is_common(value)):
            return RIGHT
        return memory.roots

    def _write(self, value: Value, roots: Roots, mover: int | None) -> None:
        self._written.add(value.storage)
        before = self._memory.get(value.storage, Memory(RIGHT, 0))
        if value in self._known and (not roots or not is_common(value)):
            if value.elements >= before.elements:
                self._memory.pop(value.storage, None)
            return
        roots = frozenset(sorted(roots | before.roots)[:MOST_ROOTS])
        size = max(value.elements, before.elements)
        mover = before.mover if mover is None else mover
        self._memory[value.storage] = Memory(roots, size, mover)

    def _lasting(self, collectives: int) -> Roots:
        """Return the operations whose wrong values reach what is there at the end.

        What is left of right values in an order that the reference has not, an operation that only
        moves values has put there.
        """
        found: Roots = RIGHT
        for value in self._wanted:
            memory = self._memory.get(value.storage)
            if memory is None:
                continue
            found |= memory.roots
            if not memory.roots and memory.mover is not None:
                self._found[memory.mover] = (), False, collectives
                found |= {memory.mover}
        return found


def _is_constant(call: SingleCall) -> bool:
    """Return whether an operation fills memory with one value, which depends on no other."""
    return not call.read and all(value.uniform for value in call.results)
