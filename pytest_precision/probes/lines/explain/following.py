"""Follow wrong values through one rank's operation log to the operations that made them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pytest_precision.probes.lines.explain.calls import (
    SMALL,
    ReferenceLookup,
    SingleCall,
    calls,
    is_common,
    moves,
)
from pytest_precision.probes.lines.explain.wrong_memory import RIGHT, Roots, WrongMemory
from pytest_precision.probes.lines.operations import OperationLog, Value

AT_START = -1
"""The place of what there is at the start."""


@dataclass(frozen=True)
class Wrong:
    """An operation at which a value went wrong, with its rank and inputs that the reference lacks.

    Attributes:
        call: the operation.
        rank: of the candidate.
        unlike: the values that it read and that the reference has never held in this form.
        source: whether the value was not made here, but given.
        collectives: number of collectives that the rank had made by then.
        calls: of the rank.
        lasts: whether the wrong value reaches what the operation of the sequence has left.
        suspects: the operations that may have made it instead, whose results have no counterpart.
        cut_otherwise: whether it comes of pieces that are no parts of the reference's tensors.
        reaches_observed: whether the wrong value reaches the tensor that differs first.
        moved: the operations that have put right values of what it reads where the reference has
            others, such as rows of a data set.
    """

    call: SingleCall
    rank: int
    unlike: tuple[Value, ...]
    source: bool
    collectives: int
    calls: tuple[SingleCall, ...]
    lasts: bool
    suspects: tuple[SingleCall, ...] = ()
    cut_otherwise: bool = False
    reaches_observed: bool = False
    moved: tuple[SingleCall, ...] = ()

    @property
    def draws(self) -> bool:
        """Return whether the operation draws random numbers."""
        return self.call.draws

    @property
    def is_replaced(self) -> bool:
        """Return whether nothing reads what the operation makes until other values replace it.

        A script that loads a checkpoint first draws the weights that the load replaces.
        """
        storages = {value.storage for value in self.call.results}
        for call in self.calls[self.calls.index(self.call) + 1 :]:
            if any(value.storage in storages for value in call.read):
                return False
            storages -= {value.storage for value in call.results}
        return not storages


class Follower:
    """Finds wrong operations on one rank by comparing each value in its log with the reference's.

    Args:
        log: of the candidate's rank.
        rank: its number.
        known: values of the reference.
        kind: of what differs first; wrong values are followed to that of what is left.
        in_pieces: whether this side holds other pieces of the tensors than the reference.
        observed: digest of the tensor that differs first; empty where it is not known.
    """

    def __init__(
        self,
        log: OperationLog,
        rank: int,
        lookup: ReferenceLookup,
        kind: str,
        *,
        in_pieces: bool,
        observed: str = "",
    ) -> None:
        self._observed = observed
        self._reached = RIGHT
        self._rank = rank
        self._lookup = lookup
        self._in_pieces = in_pieces
        unlike = {holding: value for holding, value in log.left.items() if value not in lookup}
        of_kind = [value for holding, value in unlike.items() if holding.kind == kind]
        # No step leaves its losses, and what makes a wrong one may have no part in its backward.
        self._all_last = kind == "loss" and not of_kind
        self._unlike_values = of_kind or [*unlike.values()]
        self._calls = tuple(calls(log))
        alike = [value for value in log.initial_values.values() if value in lookup]
        self._shapes = {value.shape for value in alike if value.elements > SMALL}
        self._written = {value.storage for value in alike}
        self._memory = WrongMemory()
        for holding, value in log.initial_values.items() if in_pieces else ():
            if value not in lookup and value.shape not in lookup.shapes[holding]:
                self._memory.put(value, RIGHT, (AT_START,))
        self._wrong_by_place: dict[int, Wrong] = {}
        self._counts_as: dict[int, int | None] = {}

    def wrong(self) -> Iterator[Wrong]:
        """Yield the operations that made wrong values from right inputs, in order."""
        collectives = 0
        for place, call in enumerate(self._calls):
            self._follow(place, call, collectives)
            collectives += call.operation.is_collective
        lasting = self._reached | self._lasting(collectives)
        all_last = self._all_last and not self._reached
        for place, wrong in sorted(self._wrong_by_place.items()):
            lasts = place in lasting or (all_last and not self._is_spent(place))
            yield replace(wrong, lasts=lasts, reaches_observed=place in self._reached)

    def _is_spent(self, place: int) -> bool:
        """Return whether all that a wrong value of an earlier step led to is right in the end.

        So a norm that is computed otherwise, part by part, may end in the bits of the reference's.
        """
        if not 0 < self._calls[place].step < self._lookup.last_step:
            return False
        root: int | None = place
        while root is not None:
            following = self._counts_as.get(root, root)
            if following == root:
                return False
            root = following
        return True

    def _wrong(
        self,
        place: int,
        collectives: int,
        suspects: tuple[int, ...],
        unlike: Sequence[Value] = (),
        *,
        source: bool = False,
    ) -> Wrong:
        """Return a `Wrong` for the operation at `place`; `wrong()` sets its field `lasts` later."""
        return Wrong(
            call=self._calls[place],
            rank=self._rank,
            unlike=tuple(unlike),
            source=source,
            collectives=collectives,
            calls=self._calls,
            lasts=False,
            suspects=tuple(self._calls[suspect] for suspect in suspects if suspect != AT_START),
            cut_otherwise=AT_START in suspects,
        )

    def _follow(self, place: int, call: SingleCall, collectives: int) -> None:
        roots: Roots = RIGHT
        unlike: list[Value] = []
        source = False
        apart: tuple[int, ...] = ()
        for value in call.read:
            roots |= self._roots(value)
            if value not in self._lookup and not self._roots(value):
                unlike.append(value)
                source = source or (value.storage not in self._written and value.storage >= 0)
                apart = self._joined(apart, self._memory.apart(value))
        self._note_end(call, roots)
        wrong = [value for value in call.results if value not in self._lookup]
        # What fills memory with one value depends on no other.
        is_constant = not call.read and all(value.uniform for value in call.results)
        if not wrong or roots or is_constant:
            apart = ()
        elif self._in_pieces and self._has_no_counterpart(call, unlike, apart):
            apart = self._joined(apart, (place,))
        elif moves(call) and not source:
            apart = (place,)
        else:
            suspects = self._suspects(place, unlike, apart) if self._in_pieces else ()
            wrong_here = self._wrong(place, collectives, suspects, unlike, source=source)
            moved = () if self._in_pieces else tuple(self._calls[number] for number in apart)
            self._wrong_by_place[place] = replace(wrong_here, moved=moved)
            roots = frozenset((place,))
            apart = ()
        for value in call.read:
            overwritten = any(result.storage == value.storage for result in call.results)
            if overwritten and value in self._lookup and not is_common(value):
                self._memory.overwrite_right(value)
        for value in call.results:
            self._written.add(value.storage)
            if value.digest == self._observed:
                self._reached |= roots
            if value in self._lookup and (not roots or not is_common(value)):
                self._memory.clear(value)
            else:
                self._memory.put(value, roots, apart)

    def _note_end(self, call: SingleCall, roots: Roots) -> None:
        """Note for each wrong value that an operation reads which one its result counts as.

        That is none where the result is one of the reference's, else the first of those it reads:
        memory keeps a few of them, and the first one longest.
        """
        right = [v for v in call.results if v in self._lookup and not is_common(v)]
        is_right = bool(right) and len(right) == len(call.results)
        self._counts_as |= dict.fromkeys(roots, None if is_right else min(roots, default=None))

    def _has_no_counterpart(
        self, call: SingleCall, unlike: Sequence[Value], apart: tuple[int, ...]
    ) -> bool:
        """Return whether a right result may be absent in the reference, which shards differently.

        It has a part of what it makes by elements of a value of which this side holds a part, and
        nothing of what is made of all elements of such a part, as a norm is.
        """
        shapes = {value.shape for value in call.results}
        parts = [value for value in call.read if value in self._lookup and not is_common(value)]
        if not call.operation.is_collective and any(value.shape in shapes for value in parts):
            return False
        if apart:
            return not any(value.shape in self._shapes for value in unlike)
        if call.operation.is_collective or moves(call):
            return any(
                not self._lookup.has_whole(value) for value in call.read if value in self._lookup
            )
        return any(not self._lookup.has_whole(value) for value in parts)

    def _suspects(
        self, place: int, unlike: Sequence[Value], apart: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Return the operations that may be at fault for a result that the reference does not have.

        It is right itself if it reads a wrong value that should have a counterpart.
        """
        if not apart or any(value.shape in self._shapes for value in unlike):
            return apart
        return self._joined(apart, (place,))

    def _joined(self, apart: tuple[int, ...], further: tuple[int, ...]) -> tuple[int, ...]:
        """Merge suspects: per source line, keep one operation that computes and one that copies."""
        if not further:
            return apart
        first: dict[object, int] = {}
        for place in sorted({*apart, *further}):
            call = None if place == AT_START else self._calls[place]
            first.setdefault(call and (call.line, moves(call)), place)
        return tuple(first.values())

    def _roots(self, value: Value) -> Roots:
        """Return the operations at which a value went wrong; an empty set if it is right."""
        right = value in self._lookup and not is_common(value)
        return RIGHT if right else self._memory.roots(value)

    def _lasting(self, collectives: int) -> Roots:
        """Return the operations whose wrong values are still in tensors at the end of the run.

        What is left of right values in an order that the reference has not, an operation that only
        moves values has put there.
        """
        lasting_roots: Roots = RIGHT
        for value in self._unlike_values:
            roots, apart = self._memory.roots(value), self._memory.apart(value)
            lasting_roots |= roots
            if not roots and apart and apart != (AT_START,):
                last = apart[-1]
                suspects = apart if self._in_pieces else ()
                self._wrong_by_place.setdefault(last, self._wrong(last, collectives, suspects))
                lasting_roots |= {last}
        return lasting_roots
