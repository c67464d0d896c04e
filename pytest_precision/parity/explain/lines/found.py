"""Found: the culprit of two logs, in words and as data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from pytest_precision.matrix.tensor_key import TensorKey
from pytest_precision.parity.culprit import CalledAt, Culprit, Following
from pytest_precision.parity.explain.lines.calls import SingleCall, moves
from pytest_precision.parity.explain.lines.following import Follower, Wrong
from pytest_precision.parity.explain.lines.growth import grown, module_errors, most
from pytest_precision.parity.explain.lines.kinds import ErrorKind, kind_of
from pytest_precision.parity.explain.lines.known import Known
from pytest_precision.parity.explain.lines.other_pieces import hold_other_pieces, tellable
from pytest_precision.parity.explain.lines.placed import misplaced
from pytest_precision.parity.explain.lines.restarts import not_restored
from pytest_precision.parity.explain.lines.set import SetOtherwise, set_otherwise
from pytest_precision.parity.explain.source import lines_around, shown_file
from pytest_precision.trace.operations import CodeLine, OperationLog

MOST_FOLLOWING = 2
"""Further operations that are named."""


def culprit_of(
    candidate: Sequence[OperationLog],
    reference: Sequence[OperationLog],
    root: Path,
    kind: str = "",
    name: str = "",
) -> Culprit | None:
    """Return what made the first wrong value of the candidate; None if nothing is known to.

    Where the sides hold other pieces of the tensors, a value that has only been put elsewhere is
    no sign of an error, and what went wrong further on cannot be told from it.

    Args:
        candidate: the logs of its ranks.
        reference: likewise.
        root: files are named relative to it.
        kind: of the tensor that differs first; a rate or a mode was set by a line.
        name: of this tensor, as `weight_decay of embedding.weight` for a number of a group.
    """
    settings = [*set_otherwise(candidate, reference)]
    telling = [one for one in settings if _shows(kind, name, one.what)]
    if telling:
        return _set(telling[0], root)
    known, in_pieces = Known(reference), hold_other_pieces(candidate, reference)
    followed = (
        Follower(log, known, kind, in_pieces=in_pieces).wrong(rank)
        for rank, log in enumerate(candidate)
    )
    wrong = _made_here([*chain.from_iterable(followed)], candidate)
    lasting = [one for one in wrong if one.lasts]
    chosen = sorted(lasting or ([] if in_pieces else wrong), key=_order)
    own = [one for one in settings if one.mine and one.mine.line and one.mine.line.own]
    if in_pieces:
        chosen = tellable(chosen)
        if not chosen:
            return _set(own[0], root) if own else None
    if all(moves(one.call) for one in chosen):
        chosen.reverse()  # what was put in place last
    if chosen:
        unrestored = not_restored(wrong, chosen, candidate, reference)
        if unrestored is not None:
            call, line, error = unrestored
            return _culprit(call, error, root, rank=None, named=line)
        found = _calculated(chosen, len(candidate), known, root)
        return _set(own[0], root, found) if found.outside and own else found
    left = misplaced(candidate, reference)
    if left is not None:
        call, error, rank = left
        return _culprit(call, error, root, rank=None if len(candidate) == 1 else rank)
    users = [one for one in settings if one.line and one.line.own]
    return _set(users[0], root) if users else None


def growth_of(
    candidate: Sequence[OperationLog], reference: Sequence[OperationLog], root: Path
) -> Culprit | None:
    """Return the operation at which the error grows most; None if none stands out.

    Args:
        candidate: the logs of its ranks.
        reference: likewise.
        root: files are named relative to it.
    """
    operations = grown(candidate, reference)
    found = most(operations)
    if found is None:
        return None
    operation = found.operation
    call = SingleCall(0, operation, operation.arguments, operation.read, operation.results)
    return Culprit(
        text=f"the error grows most, ×{found.growth:.3g}, to {found.error:.2g} of the values: "
        f"{_place(call, root)}",
        kind="grown",
        operation=operation.name,
        **_line_fields(operation.line, root),
        module=operation.module or None,
        rank=None if len(candidate) == 1 else found.rank,
        modules=module_errors(operations),
    )


def _shows(kind: str, name: str, what: str) -> bool:
    """Return whether a tensor of this kind and name shows what a line has set."""
    if kind == "lr":
        return what in ("lr", "initial_lr")
    if kind == "hyper":
        return what == TensorKey.of(kind, name).part
    return kind == "flag" and (what == "training" or f" {what}=" in name)


def _calculated(chosen: Sequence[Wrong], ranks: int, known: Known, root: Path) -> Culprit:
    """Return the culprit of operations that made wrong values, in order of cause."""
    first, error = chosen[0], kind_of(chosen[0], known)
    line = first.call.line
    same = {one.rank for one in chosen if one.call.line == line}
    following = tuple(_following(one, known, root) for one in _further(chosen))
    rank = None if len(same) == ranks else first.rank
    return _culprit(error.blamed or first.call, error, root, rank=rank, following=following)


def _culprit(
    call: SingleCall,
    error: ErrorKind,
    root: Path,
    *,
    rank: int | None,
    following: tuple[Following, ...] = (),
    named: CodeLine | None = None,
) -> Culprit:
    line = named or call.line
    return Culprit(
        text=f"first wrong value: {_place(call, root)}: {error.words}",
        kind=error.kind,
        operation=call.operation.name,
        **_line_fields(line, root),
        module=call.operation.module or None,
        rank=rank,
        constants=error.constants,
        reference=_called_at(error, root),
        following=following,
    )


def _set(setting: SetOtherwise, root: Path, instead: Culprit | None = None) -> Culprit:
    """Return the culprit of something that is no tensor, and what it has led to."""
    own = setting.mine or setting.theirs
    assert own is not None
    where = "" if own.line is None else _of_line(own.line, root)
    words = setting.words + (f"; then {instead.operation}" if instead is not None else "")
    return Culprit(
        text=f"first wrong value: {own.name}{where}: {words}",
        kind="setting",
        operation=own.name,
        **_line_fields(own.line, root),
        module=None if instead is None else instead.module,
        following=() if instead is None else instead.following,
    )


def _line_fields(line: CodeLine | None, root: Path) -> dict[str, Any]:
    if line is None:
        return {}
    shown = shown_file(line.file, root)
    return {
        "function": line.called or line.function,
        "file": shown.file,
        "line": line.line,
        "outside": shown.outside or not line.own,
        "source": lines_around(line.file, line.line),
    }


def _order(wrong: Wrong) -> tuple[int, bool, int, int]:
    """Order operations of several ranks by cause: a collective comes after its inputs."""
    return wrong.collectives, wrong.call.operation.is_collective, wrong.call.number, wrong.rank


def _made_here(wrong: list[Wrong], candidate: Sequence[OperationLog]) -> list[Wrong]:
    """Leave out what only goes on with wrong values that another rank has made and sent."""
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


def _further(chosen: Sequence[Wrong]) -> list[Wrong]:
    """Return the next operations, each line once."""
    found: list[Wrong] = []
    seen = {chosen[0].call.line}
    for one in chosen[1:]:
        key = one.call.line
        if key not in seen and len(found) < MOST_FOLLOWING:
            seen.add(key)
            found.append(one)
    return found


def _following(wrong: Wrong, known: Known, root: Path) -> Following:
    kind = kind_of(wrong, known)
    named = kind.blamed or wrong.call
    line = named.line
    file = None if line is None else shown_file(line.file, root).file
    text = f"{_place(named, root)}: {kind.words}"
    return Following(named.operation.name, file, None if line is None else line.line, text)


def _called_at(kind: ErrorKind, root: Path) -> CalledAt | None:
    if kind.reference is None:
        return None
    operation = kind.reference.operation
    line = operation.line
    if line is None:
        return CalledAt(operation.name, None, None, None)
    function = line.called or line.function
    return CalledAt(operation.name, function, shown_file(line.file, root).file, line.line)


def _place(call: SingleCall, root: Path) -> str:
    """Say where an operation was called."""
    operation = call.operation
    words = operation.name + (" in the backward" if operation.backward else "")
    if operation.is_custom:
        words += ", which counts as one operation,"
    if operation.module:
        words += f" of {operation.module}"
    return words + (_of_line(operation.line, root) if operation.line is not None else "")


def _of_line(line: CodeLine, root: Path) -> str:
    place = f"{shown_file(line.file, root).file}:{line.line}"
    return f" in {line.called}, called at {place}" if line.called else f" at {place}"
