"""Find the operation at fault from both runs' operation logs, or say why none is named."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from pytest_precision.matrix.tensor_key import TensorKey
from pytest_precision.parity.culprit import Culprit
from pytest_precision.probes.lines.explain import worded
from pytest_precision.probes.lines.explain.batching import unfollowed
from pytest_precision.probes.lines.explain.calls import ReferenceLookup, is_common, moves
from pytest_precision.probes.lines.explain.cut_logs import cut_of, is_beyond
from pytest_precision.probes.lines.explain.following import Follower, Wrong
from pytest_precision.probes.lines.explain.last_set import LastSet, last_set
from pytest_precision.probes.lines.explain.loop_calls import (
    RATE_OPTIONS,
    dropped_gradient,
    lacks_zeroing,
    rate_moved_before,
    set_earlier,
    zeroed_between,
)
from pytest_precision.probes.lines.explain.made_anew import made_anew
from pytest_precision.probes.lines.explain.misplaced import misplaced, not_restored
from pytest_precision.probes.lines.explain.other_data import drawn_or_fetched
from pytest_precision.probes.lines.explain.pieces import hold_other_pieces, tellable
from pytest_precision.probes.lines.explain.rejoined import before_rejoined
from pytest_precision.probes.lines.explain.user_code import (
    SetOtherwise,
    made_by_both,
    only_other,
    set_otherwise,
    too_little,
)
from pytest_precision.probes.lines.explain.worded import shown_file
from pytest_precision.probes.lines.operations import OperationLog

SHOW_OPTIONS = ("lr", "hyper", "policy")
"""Kinds of which each tensor is an option of a parameter group."""

OPTIONS_ACT_IN = ("init", "train")
"""Operations in which options act: they explain nothing that a load or an evaluation changes."""


def culprit_of(
    candidate: Sequence[OperationLog],
    reference: Sequence[OperationLog],
    root: Path,
    kind: str = "",
    name: str = "",
    operation: str = "train",
    digests: tuple[str, str] = ("", ""),
) -> Culprit | Unnamed | None:
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
        digests: of it on both sides, as a log has them; empty where its values are not known. What
            made wrong values that are no part of the candidate's is not at fault.
    """
    if anew := made_anew(candidate, kind, name, operation):
        return worded.of_user_code(anew, "missing", root, None, rank=None)
    suspicion = _suspicion(candidate, reference, root, kind, name, operation, digests)
    if suspicion.is_sure:
        return suspicion.culprit
    lacking = too_little(candidate, reference, suspicion.before)
    if lacking is None and suspicion.culprit is not None:
        lacking = only_other(candidate, reference, suspicion.before)
    if lacking is None:
        return suspicion.culprit or suspicion.unnamed
    only_sets = suspicion.culprit is not None and suspicion.culprit.kind == "setting"
    kind = "setting" if only_sets and lacking.lacking is None else "missing"
    return worded.of_user_code(lacking, kind, root, suspicion.culprit, lacking.rank)


class Unnamed(NamedTuple):
    """Why no operation can be named although values differ.

    Attributes:
        reason: in words; empty where nothing is known.
        nearest: the operations that come next to it, in words, the likeliest first.
    """

    reason: str
    nearest: tuple[str, ...] = ()


class _Suspicion(NamedTuple):
    """The operation or assignment found to have made the error, and whether this is certain.

    Attributes:
        culprit: that they name, if any.
        before: number of its operation; None where it has none.
        is_shared: whether its line runs in the reference, too.
        unnamed: why no operation is named; None where one is, or where nothing is known.
    """

    culprit: Culprit | None
    before: int | None = None
    is_shared: bool = False
    unnamed: Unnamed | None = None

    @property
    def is_sure(self) -> bool:
        """Return whether it is sure that this line of the user's code explains the difference."""
        culprit = self.culprit
        if culprit is None or culprit.outside or culprit.file is None:
            return False
        return not self.is_shared or culprit.kind in ("constant", "order")


def _suspicion(
    candidate: Sequence[OperationLog],
    reference: Sequence[OperationLog],
    root: Path,
    kind: str,
    name: str,
    operation: str,
    digests: tuple[str, str],
) -> _Suspicion:
    """Return what made the error, judged by logged values and by assignments of options.

    See `culprit_of` for the arguments.
    """
    lines = _lines_of(reference, root)
    settings = [*set_otherwise(candidate, reference)]
    if telling := _shown(settings, (candidate, reference), kind, name):
        return _set_by(last_set(telling, candidate, reference, digests) or telling, root)
    acts = operation in OPTIONS_ACT_IN
    settings = made_by_both(settings, candidate, reference) if acts else []
    lookup = ReferenceLookup(reference)
    in_pieces = hold_other_pieces(candidate, reference)
    cut = cut_of(reference)
    found_wrong = _wrong_of(candidate, lookup, kind, digests[0], in_pieces=in_pieces)
    wrong = [origin for origin in found_wrong if not is_beyond(origin, lookup, cut)]
    lasting = [origin for origin in wrong if origin.lasts]
    whole = not cut and not cut_of(candidate)  # else what writes a value last is not to be seen
    is_known = whole and _is_known(kind, candidate, lookup)
    left = misplaced(candidate, reference, kind) if is_known else None
    chosen = [] if left else sorted(lasting or ([] if in_pieces else _read(wrong)), key=_order)
    set_here = [setting for setting in settings if setting.mine and setting.is_by_user]
    chosen = tellable(chosen) if in_pieces else chosen
    if chosen:
        if all(moves(origin.call) for origin in chosen):
            chosen.reverse()  # what was put in place last
        if reason := unfollowed(chosen[0], lookup):
            return _unsure(reason, chosen, lookup, root)
        chosen = drawn_or_fetched(before_rejoined(chosen, wrong, lookup), wrong, lookup)
        if cause := _cause_of(chosen, wrong, (candidate, reference), lookup, root, kind):
            return cause
        culprit = worded.of_operations(chosen, len(candidate), lookup, root)
        if culprit.outside and set_here:
            return _set_by(set_here[0], root, culprit)
        return _Suspicion(culprit, chosen[0].call.number, (culprit.file, culprit.line) in lines)
    if whole and not is_known and not in_pieces:
        left = misplaced(candidate, reference, kind)
    if left is not None:
        call, error, rank = left
        culprit = worded.of_operation(call, error, root, rank=None if len(candidate) == 1 else rank)
        return _Suspicion(culprit, call.number, (culprit.file, culprit.line) in lines)
    users = set_here if in_pieces else [setting for setting in settings if setting.is_by_user]
    if users:
        return _set_by(users[0], root)
    return _unsure("", sorted(wrong, key=_order), lookup, root)


def _unsure(
    reason: str, origins: Sequence[Wrong], lookup: ReferenceLookup, root: Path
) -> _Suspicion:
    """Return that no operation is sure to be at fault, with those that come nearest to it."""
    nearest = worded.nearest(origins, lookup, root)
    before = origins[0].call.number if reason else None
    unnamed = Unnamed(reason, nearest) if reason or nearest else None
    return _Suspicion(None, before, unnamed=unnamed)


def _shown(
    settings: Sequence[SetOtherwise],
    sides: tuple[Sequence[OperationLog], Sequence[OperationLog]],
    kind: str,
    name: str,
) -> SetOtherwise | None:
    """Return the option set otherwise, or earlier, that the differing tensor shows; else None."""
    shows = partial(_shows, kind, name)
    telling = next((setting for setting in settings if shows(setting.setting.option)), None)
    return set_earlier(*sides, shows) if telling is None and kind in SHOW_OPTIONS else telling


def _cause_of(
    chosen: Sequence[Wrong],
    wrong: list[Wrong],
    sides: tuple[Sequence[OperationLog], Sequence[OperationLog]],
    lookup: ReferenceLookup,
    root: Path,
    kind: str,
) -> _Suspicion | None:
    """Return what operations lack that compute right: a call of the loop, or state of before."""
    candidate, reference = sides
    for explain in (lacks_zeroing, zeroed_between, dropped_gradient, rate_moved_before):
        setting = explain(candidate, reference, chosen[0])
        if setting is not None:
            then = worded.of_operations(chosen, len(candidate), lookup, root)
            return _set_by(setting, root, then)
    leading = [*chosen[: chosen[0].draws], *_leading(wrong)]
    unrestored = not_restored(leading, chosen, candidate, reference, lookup, kind)
    if unrestored is None:
        return None
    call, line, error = unrestored
    return _Suspicion(worded.of_operation(call, error, root, rank=None, named=line))


def _read(wrong: list[Wrong]) -> list[Wrong]:
    """Return the operations whose wrong values are read before others replace them."""
    return [origin for origin in wrong if not origin.is_replaced]


def _leading(wrong: list[Wrong]) -> list[Wrong]:
    """Return the operations that lead to the tensor that differs first; all if none does."""
    return [origin for origin in wrong if origin.reaches_observed] or wrong


def _wrong_of(
    candidate: Sequence[OperationLog],
    lookup: ReferenceLookup,
    kind: str,
    observed: str,
    *,
    in_pieces: bool,
) -> list[Wrong]:
    """Return operations that made wrong values, except those that got them from another rank."""
    followed = (
        Follower(log, rank, lookup, kind, in_pieces=in_pieces, observed=observed).wrong()
        for rank, log in enumerate(candidate)
    )
    wrong = [*chain.from_iterable(followed)]
    if len(candidate) == 1 or not any(origin.source for origin in wrong):
        return wrong
    rank_digests = [
        {value.digest for operation in log.operations for value in operation.results}
        for log in candidate
    ]

    def is_sent(origin: Wrong) -> bool:
        others = [digests for rank, digests in enumerate(rank_digests) if rank != origin.rank]
        return origin.source and all(
            any(v.digest in digests for digests in others) for v in origin.unlike
        )

    return [origin for origin in wrong if not is_sent(origin)]


def _set_by(suspect: SetOtherwise | LastSet, root: Path, then: Culprit | None = None) -> _Suspicion:
    """Return a finding that an option or attribute, which the runs set differently, is at fault."""
    culprit = worded.of_user_code(suspect, "setting", root, then, rank=None)
    is_shared = isinstance(suspect, SetOtherwise) and suspect.mine is None
    return _Suspicion(culprit, suspect.setting.before, is_shared)


def _lines_of(reference: Sequence[OperationLog], root: Path) -> set[tuple[str | None, int | None]]:
    """Return file and line number of the source lines that called the reference's operations."""
    called = {operation.line for log in reference for operation in log.operations}
    return {(shown_file(line.file, root).file, line.line) for line in called if line}


def _is_known(kind: str, candidate: Sequence[OperationLog], lookup: ReferenceLookup) -> bool:
    """Return whether all final values of the candidate's tensors occur in the reference's run."""
    left = [value for log in candidate for key, value in log.left.items() if key.kind == kind]
    return bool(left) and all(value in lookup and not is_common(value) for value in left)


def _shows(kind: str, name: str, option: str) -> bool:
    """Return whether a differing tensor records the option or attribute named `option`."""
    if kind == "lr":
        return option in RATE_OPTIONS
    if kind == "hyper":
        return option == TensorKey.of(kind, name).option
    if kind == "policy":
        return option == "lr" and "last_lr" in name
    return kind == "flag" and (option == "training" or f" {option}=" in name)


def _order(wrong: Wrong) -> tuple[bool, int, bool, int, int]:
    """Return a sort key, by which operations that the first difference comes from are in front.

    Among them the order is that of the calls, with a collective after what it spreads.
    """
    call = wrong.call
    spread = wrong.collectives, call.operation.is_collective
    return not wrong.reaches_observed, *spread, call.number, wrong.rank
