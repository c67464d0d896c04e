"""Find the operation at fault from both runs' operation logs, and put it into words."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from pytest_precision.matrix.tensor_key import TensorKey
from pytest_precision.parity.culprit import Culprit
from pytest_precision.parity.explain.lines import worded
from pytest_precision.parity.explain.lines.calls import is_common, moves
from pytest_precision.parity.explain.lines.following import Follower, Wrong
from pytest_precision.parity.explain.lines.growth import grown, module_errors, most
from pytest_precision.parity.explain.lines.known import Known
from pytest_precision.parity.explain.lines.left_out import only_other, too_little
from pytest_precision.parity.explain.lines.placed import misplaced
from pytest_precision.parity.explain.lines.restarts import not_restored
from pytest_precision.parity.explain.lines.set import SetOtherwise, set_otherwise
from pytest_precision.parity.explain.lines.unnamed import (
    cut_of,
    hold_other_pieces,
    is_beyond,
    tellable,
)
from pytest_precision.parity.explain.source import shown_file
from pytest_precision.trace.operations import OperationLog


def culprit_of(
    candidate: Sequence[OperationLog],
    reference: Sequence[OperationLog],
    root: Path,
    kind: str = "",
    name: str = "",
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
    """
    made = _made(candidate, reference, root, kind, name)
    if made.is_sure:
        return made.culprit
    lacking = too_little(candidate, reference, made.before)
    if lacking is None and made.culprit is not None:
        lacking = only_other(candidate, reference, made.before)
    if lacking is None:
        return made.culprit
    return worded.of_left_out(lacking, made.culprit, root)


class _Made(NamedTuple):
    """The operation or assignment that made the error, and whether this is certain.

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
) -> _Made:
    """Return what made the error, judged by logged values and by assignments of options.

    See `culprit_of` for the arguments.
    """
    lines = _lines_of(reference, root)
    settings = [*set_otherwise(candidate, reference)]
    telling = [one for one in settings if _shows(kind, name, one.setting.what)]
    if telling:
        return _set_by(telling[0], root)
    known = Known(reference)
    in_pieces = hold_other_pieces(candidate, reference)
    cut = cut_of(reference)
    found_wrong = _wrong_of(candidate, known, kind, in_pieces=in_pieces)
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
        unrestored = not_restored(wrong, chosen, candidate, reference, known)
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
    candidate: Sequence[OperationLog], known: Known, kind: str, *, in_pieces: bool
) -> list[Wrong]:
    """Return the operations of all ranks that made wrong values, not those that received them."""
    followed = (
        Follower(log, rank, known, kind, in_pieces=in_pieces).wrong()
        for rank, log in enumerate(candidate)
    )
    return _made_here([*chain.from_iterable(followed)], candidate)


def _set_by(setting: SetOtherwise, root: Path, then: Culprit | None = None) -> _Made:
    """Return an option or attribute that the runs set differently as what made the error."""
    found = worded.of_setting(setting, root, then)
    return _Made(found, setting.setting.before, setting.mine is None)


def _lines_of(reference: Sequence[OperationLog], root: Path) -> set[tuple[str | None, int | None]]:
    """Return file and line number of the source lines that called the reference's operations."""
    called = {operation.line for log in reference for operation in log.operations}
    return {(shown_file(line.file, root).file, line.line) for line in called if line}


def _is_known(kind: str, candidate: Sequence[OperationLog], known: Known) -> bool:
    """Return whether all final values of the candidate's tensors occur in the reference's run."""
    left = [value for log in candidate for held, value in log.left.items() if held.kind == kind]
    return bool(left) and all(value in known and not is_common(value) for value in left)


def growth_of(
    candidate: Sequence[OperationLog], reference: Sequence[OperationLog], root: Path
) -> Culprit | None:
    """Return the operation at which the error grows most; None if none stands out.

    Args:
        candidate: the logs of its ranks.
        reference: the logs of the reference's ranks.
        root: files are named relative to it.
    """
    operations = grown(candidate, reference)
    found = most(operations)
    if found is None:
        return None
    operation = found.operation
    return Culprit(
        text=f"the error grows most, ×{found.growth:.3g}, to {found.error:.2g} of the values: "
        f"{worded.called_place(operation, root)}",
        kind="grown",
        operation=operation.name,
        **worded.line_fields(operation.line, root),
        module=operation.module or None,
        rank=None if len(candidate) == 1 else found.rank,
        modules=module_errors(operations),
    )


def _shows(kind: str, name: str, what: str) -> bool:
    """Return whether a differing tensor shows the value of the option or attribute `what`."""
    if kind == "lr":
        return what in ("lr", "initial_lr")
    if kind == "hyper":
        return what == TensorKey.of(kind, name).option
    return kind == "flag" and (what == "training" or f" {what}=" in name)


def _order(wrong: Wrong) -> tuple[int, bool, int, int]:
    """Return a sort key that puts operations before the collective that spreads their values."""
    return wrong.collectives, wrong.call.operation.is_collective, wrong.call.number, wrong.rank


def _made_here(wrong: list[Wrong], candidate: Sequence[OperationLog]) -> list[Wrong]:
    """Drop operations that only use wrong values which another rank made and sent."""
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
