"""Find the operation at fault from both runs' operation logs, or say why none is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from pytest_precision.matrix.tensor_key import TensorKey
from pytest_precision.parity.culprit import Culprit
from pytest_precision.parity.explain.lines import worded
from pytest_precision.parity.explain.lines.calls import (
    Known,
    SingleCall,
    is_common,
    moves,
    shapes_of,
)
from pytest_precision.parity.explain.lines.following import Follower, Wrong
from pytest_precision.parity.explain.lines.misplaced import misplaced, not_restored
from pytest_precision.parity.explain.lines.user_code import (
    SetOtherwise,
    only_other,
    set_otherwise,
    too_little,
)
from pytest_precision.parity.explain.lines.worded import shown_file
from pytest_precision.trace.operations import OperationLog

OPTIONS_ACT_IN = ("init", "train")
"""Operations in which options act: they explain nothing that a load or an evaluation changes."""


def culprit_of(
    candidate: Sequence[OperationLog],
    reference: Sequence[OperationLog],
    root: Path,
    kind: str = "",
    name: str = "",
    operation: str = "train",
    observed: str = "",
) -> Culprit | None:
    """Return the operation that made the candidate's first wrong value; None if not known.

    Where the sides hold other pieces of the tensors, a value that has only been put elsewhere is
    no sign of an error, and what went wrong further on cannot be told from it.

    Where a log ends at its limit, what the other side does later is no sign of one either.

    Args:
        candidate: the logs of its ranks.
        reference: the logs of the reference's ranks.
        root: files are named relative to it.
        kind: of the tensor that differs first; a rate or a mode was set by a line.
        name: of this tensor, as `weight_decay of embedding.weight` for a number of a group.
        operation: of the sequence, after which it differs first.
        observed: its digest, as a log has it; empty where its values are not known. What made
            wrong values that are no part of it is not at fault.
    """
    made = _made(candidate, reference, root, kind, name, operation, observed)
    if made.is_sure:
        return made.culprit
    lacking = too_little(candidate, reference, made.before)
    if lacking is None and made.culprit is not None:
        lacking = only_other(candidate, reference, made.before)
    if lacking is None:
        return made.culprit
    only_sets = made.culprit is not None and made.culprit.kind == "setting"
    kind = "setting" if only_sets and lacking.lacking is None else "missing"
    return worded.of_user_code(lacking, kind, root, made.culprit, lacking.rank)


class _Made(NamedTuple):
    """The operation or assignment found to have made the error, and whether this is certain.

    Attributes:
        culprit: that they name, if any.
        before: number of its operation; None where it has none.
        is_shared: whether its line runs in the reference, too.
    """

    culprit: Culprit | None
    before: int | None = None
    is_shared: bool = False

    @property
    def is_sure(self) -> bool:
        """Return whether it is sure that this line of the user's code explains the difference."""
        found = self.culprit
        if found is None or found.outside or found.file is None:
            return False
        return not self.is_shared or found.kind in ("constant", "order")


def _made(
    candidate: Sequence[OperationLog],
    reference: Sequence[OperationLog],
    root: Path,
    kind: str,
    name: str,
    operation: str,
    observed: str,
) -> _Made:
    """Return what made the error, judged by logged values and by assignments of options.

    See `culprit_of` for the arguments.
    """
    lines = _lines_of(reference, root)
    settings = [*set_otherwise(candidate, reference)]
    telling = [one for one in settings if _shows(kind, name, one.setting.option)]
    if telling:
        return _set_by(telling[0], root)
    if operation not in OPTIONS_ACT_IN:
        settings = []
    known = Known(reference)
    in_pieces = hold_other_pieces(candidate, reference)
    cut = cut_of(reference)
    found_wrong = _wrong_of(candidate, known, kind, observed, in_pieces=in_pieces)
    wrong = [one for one in found_wrong if not is_beyond(one, known, cut)]
    lasting = [one for one in wrong if one.lasts]
    whole = not cut and not cut_of(candidate)  # else what writes a value last is not to be seen
    is_known = whole and _is_known(kind, candidate, known)
    left = misplaced(candidate, reference, kind) if is_known else None
    chosen = [] if left else sorted(lasting or ([] if in_pieces else wrong), key=_order)
    set_here = [one for one in settings if one.mine and one.is_by_user]
    if in_pieces:
        chosen = tellable(chosen)
    if chosen:
        if all(moves(one.call) for one in chosen):
            chosen.reverse()  # what was put in place last
        leading = [one for one in wrong if one.reaches_observed] or wrong
        unrestored = not_restored(leading, chosen, candidate, reference, known, kind)
        if unrestored is not None:
            call, line, error = unrestored
            return _Made(worded.of_operation(call, error, root, rank=None, named=line))
        found = worded.of_operations(chosen, len(candidate), known, root)
        if found.outside and set_here:
            return _set_by(set_here[0], root, found)
        return _Made(found, chosen[0].call.number, (found.file, found.line) in lines)
    if whole and not is_known and not in_pieces:
        left = misplaced(candidate, reference, kind)
    if left is not None:
        call, error, rank = left
        found = worded.of_operation(call, error, root, rank=None if len(candidate) == 1 else rank)
        return _Made(found, call.number, (found.file, found.line) in lines)
    users = set_here if in_pieces else [one for one in settings if one.is_by_user]
    return _set_by(users[0], root) if users else _Made(None)


def _wrong_of(
    candidate: Sequence[OperationLog], known: Known, kind: str, observed: str, *, in_pieces: bool
) -> list[Wrong]:
    """Return operations that made wrong values, except those that got them from another rank."""
    followed = (
        Follower(log, rank, known, kind, in_pieces=in_pieces, observed=observed).wrong()
        for rank, log in enumerate(candidate)
    )
    wrong = [*chain.from_iterable(followed)]
    if len(candidate) == 1 or not any(one.source for one in wrong):
        return wrong
    made = [
        {value.digest for operation in log.operations for value in operation.results}
        for log in candidate
    ]

    def is_sent(one: Wrong) -> bool:
        others = [digests for rank, digests in enumerate(made) if rank != one.rank]
        return one.source and all(any(v.digest in own for own in others) for v in one.unlike)

    return [one for one in wrong if not is_sent(one)]


def _set_by(setting: SetOtherwise, root: Path, then: Culprit | None = None) -> _Made:
    """Return a finding that an option or attribute, which the runs set differently, is at fault."""
    found = worded.of_user_code(setting, "setting", root, then, rank=None)
    return _Made(found, setting.setting.before, setting.mine is None)


def _lines_of(reference: Sequence[OperationLog], root: Path) -> set[tuple[str | None, int | None]]:
    """Return file and line number of the source lines that called the reference's operations."""
    called = {operation.line for log in reference for operation in log.operations}
    return {(shown_file(line.file, root).file, line.line) for line in called if line}


def _is_known(kind: str, candidate: Sequence[OperationLog], known: Known) -> bool:
    """Return whether all final values of the candidate's tensors occur in the reference's run."""
    left = [value for log in candidate for held, value in log.left.items() if held.kind == kind]
    return bool(left) and all(value in known and not is_common(value) for value in left)


def _shows(kind: str, name: str, what: str) -> bool:
    """Return whether a differing tensor records the option or attribute named `what`."""
    if kind == "lr":
        return what in ("lr", "initial_lr")
    if kind == "hyper":
        return what == TensorKey.of(kind, name).option
    return kind == "flag" and (what == "training" or f" {what}=" in name)


def _order(wrong: Wrong) -> tuple[bool, int, bool, int, int]:
    """Return a sort key: operations that lead to the tensor that differs first come first.

    Among them the order is that of the calls, with a collective after what it spreads.
    """
    call = wrong.call
    spread = wrong.collectives, call.operation.is_collective
    return not wrong.reaches_observed, *spread, call.number, wrong.rank


def cut_of(logs: Sequence[OperationLog]) -> int:
    """Return after how many operations the shortest log was cut off; 0 if all logs are complete."""
    return min((log.cut for log in logs if log.cut), default=0)


def is_beyond(wrong: Wrong, known: Known, cut: int) -> bool:
    """Return whether the reference, whose log was cut, may run an operation after the log's end.

    That is so of an operation as late as its end, and of one that reads what the reference has
    made and not yet read: sides that need other numbers of operations get there sooner.

    Args:
        wrong: an operation of the candidate.
        known: values of the reference.
        cut: where its log ends; 0 if it is whole.
    """
    if not cut:
        return False
    telling = [one for one in wrong.call.read if one in known and not is_common(one)]
    unread = any(not known.readers[one.digest] for one in telling)
    return unread or wrong.call.number >= cut


def hold_other_pieces(candidate: Sequence[OperationLog], reference: Sequence[OperationLog]) -> bool:
    """Return whether candidate and reference split weights or optimizer state into different
    pieces.

    They do if a tensor has another shape there, or weights have other names, as flat ones do.

    Args:
        candidate: the logs of its ranks.
        reference: the logs of the reference's ranks.
    """
    ours, theirs = shapes_of(candidate), shapes_of(reference)
    unlike = any(ours[held] != theirs[held] for held in ours.keys() & theirs.keys())
    alone = (ours.keys() - theirs.keys(), theirs.keys() - ours.keys())
    return unlike or all(any(held.kind == "param" for held in side) for side in alone)


def tellable(wrong: Sequence[Wrong]) -> list[Wrong]:
    """Return only those wrong operations that cannot be explained by the runs' different sharding.

    What is right up to there comes first. Where operations have no counterpart, one of them is
    named if they belong to one line, since nothing tells which of them is right.
    """
    found = []
    for one in sorted(wrong, key=lambda one: bool(one.suspects or one.cut_otherwise)):
        if one.suspects or one.cut_otherwise:
            suspect = None if one.cut_otherwise else _only_line(one)
            if suspect is not None:
                found.append(replace(one, call=suspect, unlike=(), source=False))
        elif not _is_of_pieces(one):
            found.append(one)
    return found


def _only_line(wrong: Wrong) -> SingleCall | None:
    """Return the first suspected operation if all of them belong to one source line; else None.

    Where all of them only move values, the last one has put a value where it does not belong.
    What a library does for a line of the user's belongs to that line; what it does by itself is not
    held against it where there is one.
    """
    computed = [call for call in wrong.suspects if not moves(call)] or [wrong.call]
    by_users = [call for call in computed if call.line is not None and call.line.is_users]
    computed = by_users or computed
    places = {call.line and call.line[:2] for call in computed}
    return computed[0] if len(places) == 1 else None


def _is_of_pieces(wrong: Wrong) -> bool:
    """Return whether the reference may lack a value only because it shards tensors differently.

    It was put into a buffer, it is what a collective made, or it lies in memory that no operation
    has written, as a flat buffer does that shards are views of. A library does so in its own code;
    where a line of the user's does, that line is worth a look.
    """
    line = wrong.call.operation.line
    if line is not None and line.is_users and not line.called:
        return False
    return wrong.source or wrong.call.operation.is_collective or moves(wrong.call)
