"""Moved: each side of a check against the same side in another commit or installation.

With both sides at both ends there are four recordings, which tell a change of one side from one of
what both have in common: the environment, or shared code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pytest_precision.check.accuracy import Accuracies, accuracy_lines, as_builtins, measured
from pytest_precision.check.case import Case
from pytest_precision.check.gate import gate
from pytest_precision.check.gates import agreement, refused, same_data
from pytest_precision.check.recordings import MakeRecordings, Recordings
from pytest_precision.check.repeatable import differs, what_differs
from pytest_precision.check.side import Side
from pytest_precision.errors import RanksSkipped, SideFailed
from pytest_precision.parity.compare.divergences import Finding
from pytest_precision.parity.verdict import Ruling
from pytest_precision.ranks.pool import RankPool

SHOWN_DIFFERENCES = 12
"""Differences between two environments that a failure lists; report.json has all of them."""


@dataclass(frozen=True)
class Then:
    """The commit or installation that each side is compared with.

    Attributes:
        name: what messages call it.
        ranks: ranks that run its code.
        packages: returns package to its version here and there, where another interpreter has
            another one.
    """

    name: str
    ranks: RankPool
    packages: Callable[[], Mapping[str, list[str]]]


@dataclass(frozen=True)
class Moves:
    """How each side of a check differs from the same side at another revision, or when it was kept.

    Attributes:
        name: what messages call then.
        rulings: each side that has moved, and how.
        apart: returns how both sides differed from each other then; None if they agreed.
        differences: what decides about bits, and packages, to how they are here and there.
        refresh: what to do where the new numbers are meant; empty if only a drift can be.
        alone: whether there is one side, whose reference is a baseline.
        measure: returns how accurate both sides are now and then; nothing where nobody can say.
    """

    name: str
    rulings: Mapping[str, Ruling]
    apart: Callable[[], Ruling | None]
    differences: Mapping[str, list[str]] = field(default_factory=dict)
    refresh: str = ""
    alone: bool = False
    measure: Callable[[], Accuracies] = dict

    @cached_property
    def accuracy(self) -> Accuracies:
        """Return how accurate both sides are now and then; it is measured when it is asked for."""
        return self.measure()

    @cached_property
    def disagreement(self) -> Ruling | None:
        """Return how the two sides differed from each other then; None if they agreed."""
        return self.apart()

    def as_dict(self) -> dict[str, Any]:
        """Return it as builtins, for report.json."""
        moved = {name: ruling.reason for name, ruling in self.rulings.items()}
        found = {"name": self.name, "moved": moved, "environment": dict(self.differences)}
        measured = self.__dict__.get("accuracy")
        return found if not measured else found | {"accuracy": as_builtins(measured)}


def recorded_then(
    now: Case, sides: tuple[Side, ...], then: Then, record: MakeRecordings, stack: ExitStack
) -> Moves:
    """Record the sides of a case at the other revision, and return how they moved.

    Args:
        now: both sides now, or the candidate alone.
        sides: what they were recorded from.
        then: the other commit or installation.
        record: makes the recordings of a side now and at the other revision.
        stack: removes what is recorded here.

    Raises:
        SideFailed, RanksSkipped, WorldSizeError: see `Recordings.both`.
    """
    cases: dict[str, Case] = {}
    made: dict[str, Recordings] = {}
    for side, recording in zip(sides, now.judged, strict=True):
        names = recording.name, f"{recording.name} at {then.name}"
        # What a side computed then is compared, and not judged by itself.
        theirs = replace(side, then=then.name, gradients=False)
        own = made[recording.name] = record(side, theirs, then=then.ranks, names=names)
        cases[recording.name] = now.beside(recording, stack.enter_context(closing(own)))
    found = {name: _moved_of(case) for name, case in cases.items()}

    def apart() -> Ruling | None:
        if len(cases) == 1:
            return None
        ours, theirs = (case.reference for case in cases.values())
        case = Case(replace(ours, name="candidate"), theirs, now.terms._replace(lines=False))
        case.noise = now.noise
        return refused(case, (same_data, agreement))

    rulings = {name: ruling for name, ruling in found.items() if ruling is not None}
    differences = differences_in_time(cases.values(), then.packages())
    alone = len(cases) == 1
    return Moves(
        then.name, rulings, apart, differences, alone=alone, measure=lambda: measured(made)
    )


def _moved_of(case: Case) -> Ruling | None:
    """Return how a side differs from itself then; None if it has not moved.

    Of a tensor in which ranks disagree at both ends there is no whole one to compare, so that each
    rank is compared with itself.
    """
    ruling = refused(case, (same_data, agreement))
    if ruling is None or ruling.gate != agreement.__name__:
        return ruling
    first = case.judgement.first
    if first is None or not _torn_at_both_ends(first):
        return ruling
    by_rank = differs(case.candidate, case.reference, case.terms.criteria)
    if by_rank is None:
        return None
    reason = (
        f"{what_differs(by_rank)}, and its ranks hold different bits of one tensor at both ends"
    )
    return Ruling(outcome="fail", gate=ruling.gate, reason=reason)


def _torn_at_both_ends(found: Finding) -> bool:
    """Return whether neither end has a whole tensor, since its ranks hold different bits."""
    ends = found.pair.candidate, found.pair.reference
    return all(end is not None and end.fault is not None for end in ends)


def differences_in_time(
    cases: Iterable[Case], packages: Mapping[str, list[str]]
) -> Mapping[str, list[str]]:
    """Return what decides about bits, and then packages, to how they are here and there.

    Packages that one of the two lacks come last: they are many, and most of them decide nothing.
    """
    found: dict[str, list[str]] = {}
    for case in cases:
        here, there = (side.trace.header.environment for side in case.sides)
        for name in dict.fromkeys([*here, *there]):
            if here.get(name) != there.get(name):
                found[name] = [here.get(name, "none"), there.get(name, "none")]
    return found | dict(sorted(packages.items(), key=lambda own: "none" in own[1]))


def since_then(
    now: Ruling,
    case: Case,
    sides: tuple[Side, ...],
    then: Then,
    record: MakeRecordings,
) -> tuple[Ruling, dict[str, Any]]:
    """Return the ruling on a case and its other revision, and the figures of the comparison.

    Args:
        now: the ruling on the sides as they are now.
        case: both sides now, or the candidate alone.
        sides: what they were recorded from.
        then: the other commit or installation.
        record: makes the recordings of a side now and at the other revision.

    Raises:
        SideFailed, RanksSkipped, WorldSizeError: see `Recordings.both`; only of a case that passes.
    """
    if now.outcome not in ("pass", "fail"):
        return now, {}  # what proves nothing now has nothing to compare
    with ExitStack() as stack:
        try:
            return since(now, recorded_then(case, sides, then, record, stack))
        except (RanksSkipped, SideFailed) as error:
            if now.outcome == "pass":
                raise
            return _told(now, [f"Not compared with {then.name}: {error}"]), {}


def since(now: Ruling, moves: Moves) -> tuple[Ruling, dict[str, Any]]:
    """Return the ruling on sides that passed or failed, and have moved or not; and figures."""
    found = moved(now, moves) or drifted(now, moves) or _unmoved(now, moves)
    return found, {"then": moves.as_dict()}


@gate
def moved(now: Ruling, moves: Moves) -> Ruling | None:
    """Refuse a side that moved alone, and sides that moved and do not agree as they did."""
    found, lost = moves.rulings, now.gate == agreement.__name__
    if not found or (now.outcome != "pass" and not lost):
        return None
    if lost and moves.disagreement is not None:
        return None
    if len(found) == 2 and not lost and moves.disagreement is None:
        return None
    name, ruling = next(iter(found.items()))
    since = f"since {moves.name}"
    if lost:
        who = "both sides" if len(found) == 2 else f"the {name}"
        reason = f"agreement was lost {since}: {who} moved: {ruling.reason}"
    elif len(found) == 2:
        reason = f"both sides moved {since}, where they did not agree: {ruling.reason}"
    elif moves.alone:
        reason = f"the candidate moved {since}, and agrees with its baseline: {ruling.reason}"
    else:
        other = "reference" if name == "candidate" else "candidate"
        reason = f"the {name} moved {since}, the {other} did not: {ruling.reason}"
    details = [*_environment(moves), *_others(now, moves), *filter(None, [moves.refresh])]
    return replace(_of_move(ruling, name, moves.name, details), outcome="fail", reason=reason)


@gate
def drifted(now: Ruling, moves: Moves) -> Ruling | None:
    """Refuse sides that have both moved and still agree with each other, as they did."""
    found = moves.rulings
    if now.outcome != "pass" or len(found) < 2:
        return None
    ruling = found["candidate"]
    reason = f"both sides moved since {moves.name} and still agree: {ruling.reason}"
    accurate = [*accuracy_lines(moves.accuracy, moves.name)]
    details = [
        "What both have in common moved: the environment, or shared code.",
        *accurate,
        *_environment(moves),
        moves.refresh or "If that is meant, --precision-drift=report lets it pass.",
    ]
    moved_ruling = _of_move(ruling, "candidate", moves.name, details)
    brief = *accurate, *ruling.brief
    return replace(moved_ruling, outcome="drift", reason=reason, brief=brief)


TIME_GATES = (moved, drifted)
"""The gates of a check that is compared with another commit or installation."""


def _unmoved(now: Ruling, moves: Moves) -> Ruling:
    """Return the ruling on the sides as they are now, with what was found of then."""
    if now.outcome == "pass":
        return now
    if not moves.rulings:
        who = "the candidate has not" if moves.alone else "neither side has"
        return _told(now, [f"It was so at {moves.name}, too: {who} moved."])
    words = [
        f"The {name} has moved since {moves.name}: {one.reason}"
        for name, one in moves.rulings.items()
    ]
    if moves.disagreement is not None:
        words.insert(0, f"The sides differed at {moves.name}, too: {moves.disagreement.reason}")
    return _told(now, words)


def _of_move(ruling: Ruling, name: str, then: str, details: Iterable[str]) -> Ruling:
    """Return the ruling on a side against itself, told as that of its check."""
    return replace(
        ruling,
        details=(
            *details,
            f"Below, both are the {name}: as it is here, and, as the reference, at {then}.",
            *ruling.details,
        ),
    )


def _others(now: Ruling, moves: Moves) -> Iterator[str]:
    """Say what the first line does not: how the sides agree now, and how they did."""
    if now.outcome == "fail":
        yield f"Now the two sides differ: {now.reason}"
    elif moves.disagreement is not None:
        yield f"At {moves.name} the two sides differed: {moves.disagreement.reason}"
    for name, ruling in [*moves.rulings.items()][1:]:
        yield f"The {name} moved, too: {ruling.reason}"


def _environment(moves: Moves) -> Iterator[str]:
    found = [*moves.differences.items()]
    for name, (here, there) in found[:SHOWN_DIFFERENCES]:
        yield f"{name}: {here} here, {there} at {moves.name}"
    if len(found) > SHOWN_DIFFERENCES:
        more = len(found) - SHOWN_DIFFERENCES
        yield f"{more} more differences are in report.json, in `then`"


def _told(ruling: Ruling, words: Iterable[str]) -> Ruling:
    return replace(ruling, details=(*words, *ruling.details))
