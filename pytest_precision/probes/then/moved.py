"""Decide checks of candidates and references that changed since another revision or a baseline.

What one side alone does is its change; what both do has a cause that they have in common: the
environment, or shared code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pytest_precision.check.gate import gate
from pytest_precision.check.gates import agreement
from pytest_precision.parity.verdict import Ruling
from pytest_precision.probes.accuracy.beside_fp64 import Accuracies, accuracy_lines, as_builtins

SHOWN_DIFFERENCES = 12
"""Differences between two environments that a failure lists; report.json has all of them."""


@dataclass(frozen=True)
class Moves:
    """How candidate and reference moved: how each differs from itself at an earlier revision.

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
        """Return each run's error against fp64 now and then, measured at the first call."""
        return self.measure()

    @cached_property
    def disagreement(self) -> Ruling | None:
        """Return how candidate and reference differed at the revision; None if they agreed."""
        return self.apart()

    def as_dict(self) -> dict[str, Any]:
        """Return as a dict for report.json how both runs have changed since the other revision."""
        moved = {name: ruling.reason for name, ruling in self.rulings.items()}
        report = {"name": self.name, "moved": moved, "environment": dict(self.differences)}
        measured = self.__dict__.get("accuracy")
        return report if not measured else report | {"accuracy": as_builtins(measured)}


def since(current_ruling: Ruling, moves: Moves) -> tuple[Ruling, dict[str, Any]]:
    """Return the outcome and report data of a check whose runs may have changed since a revision.

    It comes with data for the report.
    """
    ruling = (
        moved(current_ruling, moves)
        or drifted(current_ruling, moves)
        or _unmoved_ruling(current_ruling, moves)
    )
    return ruling, {"then": moves.as_dict()}


@gate
def moved(current_ruling: Ruling, moves: Moves) -> Ruling | None:
    """Fail the check if one run alone, or the agreement of both, changed since another revision."""
    rulings = moves.rulings
    lost = current_ruling.gate == agreement.__name__
    if not rulings or (current_ruling.outcome != "pass" and not lost):
        return None
    if lost and moves.disagreement is not None:
        return None
    if len(rulings) == 2 and not lost and moves.disagreement is None:
        return None
    name, ruling = next(iter(rulings.items()))
    since = f"since {moves.name}"
    if lost:
        who = "both sides" if len(rulings) == 2 else f"the {name}"
        reason = f"agreement was lost {since}: {who} moved: {ruling.reason}"
    elif len(rulings) == 2:
        reason = f"both sides moved {since}, where they did not agree: {ruling.reason}"
    elif moves.alone:
        reason = f"the candidate moved {since}, and agrees with its baseline: {ruling.reason}"
    else:
        other = "reference" if name == "candidate" else "candidate"
        reason = f"the {name} moved {since}, the {other} did not: {ruling.reason}"
    details = [
        *_environment(moves),
        *_others(current_ruling, moves),
        *filter(None, [moves.refresh]),
    ]
    return replace(_of_move(ruling, name, moves.name, details), outcome="fail", reason=reason)


@gate
def drifted(current_ruling: Ruling, moves: Moves) -> Ruling | None:
    """Fail the check if both runs changed since another revision, yet agree with each other."""
    rulings = moves.rulings
    if current_ruling.outcome != "pass" or len(rulings) < 2:
        return None
    ruling = rulings["candidate"]
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


def _unmoved_ruling(current_ruling: Ruling, moves: Moves) -> Ruling:
    """Return the check's outcome as it is, with notes on what changed since another revision."""
    if current_ruling.outcome == "pass":
        return current_ruling
    if not moves.rulings:
        who = "the candidate has not" if moves.alone else "neither side has"
        return told_first(current_ruling, [f"It was so at {moves.name}, too: {who} moved."])
    words = [
        f"The {name} has moved since {moves.name}: {ruling.reason}"
        for name, ruling in moves.rulings.items()
    ]
    if moves.disagreement is not None:
        words.insert(0, f"The sides differed at {moves.name}, too: {moves.disagreement.reason}")
    return told_first(current_ruling, words)


def _of_move(ruling: Ruling, name: str, then: str, details: Iterable[str]) -> Ruling:
    """Return the ruling with lines added which say that it compares a run at two revisions."""
    return replace(
        ruling,
        details=(
            *details,
            f"Below, both are the {name}: as it is here, and, as the reference, at {then}.",
            *ruling.details,
        ),
    )


def _others(current_ruling: Ruling, moves: Moves) -> Iterator[str]:
    """Yield a line if candidate and reference differ, now or then, and one if both have changed."""
    if current_ruling.outcome == "fail":
        yield f"Now the two sides differ: {current_ruling.reason}"
    elif moves.disagreement is not None:
        yield f"At {moves.name} the two sides differed: {moves.disagreement.reason}"
    for name, ruling in [*moves.rulings.items()][1:]:
        yield f"The {name} moved, too: {ruling.reason}"


def _environment(moves: Moves) -> Iterator[str]:
    differences = [*moves.differences.items()]
    for name, (new_setting, old_setting) in differences[:SHOWN_DIFFERENCES]:
        yield f"{name}: {new_setting} here, {old_setting} at {moves.name}"
    if len(differences) > SHOWN_DIFFERENCES:
        more = len(differences) - SHOWN_DIFFERENCES
        yield f"{more} more differences are in report.json, in `then`"


def told_first(ruling: Ruling, words: Iterable[str]) -> Ruling:
    """Return an outcome with these lines put before its other details."""
    return replace(ruling, details=(*words, *ruling.details))
