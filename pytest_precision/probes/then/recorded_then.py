"""Run the sides of a check at another commit or installation, and compare them with now.

With both sides at both ends there are four recordings, which tell a change of one side from one of
what both have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_precision.check.case import Case
from pytest_precision.check.gates import agreement, refused, same_data
from pytest_precision.check.recordings import MakeRecordings, Recordings
from pytest_precision.errors import RanksSkipped, SideFailed
from pytest_precision.parity.compare.differing import Finding
from pytest_precision.parity.compare.divergences import differs
from pytest_precision.parity.verdict import Ruling
from pytest_precision.probes.accuracy.beside_fp64 import measured
from pytest_precision.probes.then.moved import Moves, since, told_first
from pytest_precision.ranks.pool import RankPool
from pytest_precision.recorders.variant import Variant

if TYPE_CHECKING:
    from pytest_precision.check.checked_test import CheckedTest
    from pytest_precision.check.ruled_check import FurtherRule


@dataclass(frozen=True)
class Then:
    """The commit or installation against whose results a check compares those of the current code.

    Attributes:
        name: what messages call it.
        ranks: ranks that run its code.
        packages: returns package to its version here and there, where another interpreter has
            another one.
    """

    name: str
    ranks: RankPool
    packages: Callable[[], Mapping[str, list[str]]]


def then_rule(then: Then, test: CheckedTest) -> FurtherRule:
    """Return the rule that compares a test's check with the other commit or installation."""

    def rule(current_ruling: Ruling, case: Case) -> tuple[Ruling, dict[str, Any]]:
        try:
            return since_then(then, test.make_recordings, current_ruling, case)
        finally:
            then.ranks.end_check()

    return rule


def since_then(
    then: Then, record: MakeRecordings, current_ruling: Ruling, case: Case
) -> tuple[Ruling, dict[str, Any]]:
    """Run candidate and reference at another revision, too; return the check's outcome.

    Args:
        then: the other commit or installation.
        record: makes the recordings of a side now and at the other revision.
        current_ruling: the ruling on the sides as they are now.
        case: both sides now, or the candidate alone.

    Raises:
        SideFailed, RanksSkipped, WorldSizeError: see `Recordings.both`; only of a case that passes.
    """
    if current_ruling.outcome not in ("pass", "fail"):
        return current_ruling, {}  # what proves nothing now has nothing to compare
    with ExitStack() as stack:
        try:
            return since(current_ruling, recorded_then(case, then, record, stack))
        except (RanksSkipped, SideFailed) as error:
            if current_ruling.outcome == "pass":
                raise
            return told_first(current_ruling, [f"Not compared with {then.name}: {error}"]), {}


def recorded_then(
    current_case: Case, then: Then, record: MakeRecordings, stack: ExitStack
) -> Moves:
    """Record candidate and reference at another revision; return how their results differ from now.

    Args:
        current_case: both sides now, or the candidate alone.
        then: the other commit or installation.
        record: makes the recordings of a side now and at the other revision.
        stack: removes what is recorded here.

    Raises:
        SideFailed, RanksSkipped, WorldSizeError: see `Recordings.both`.
    """
    cases: dict[str, Case] = {}
    recordings_by_side: dict[str, Recordings] = {}
    for side, recording in current_case.recorded():
        names = recording.name, f"{recording.name} at {then.name}"
        # What a side computed then is compared, and not judged by itself.
        theirs = replace(
            side.varied(Variant(gradients=False)), then=then.name, probes=side.probes_of_package
        )
        recordings = recordings_by_side[recording.name] = record(
            side, theirs, then=then.ranks, names=names
        )
        cases[recording.name] = current_case.beside(
            recording, stack.enter_context(closing(recordings))
        )
    outcomes = {name: _moved_of(case) for name, case in cases.items()}

    def apart() -> Ruling | None:
        if len(cases) == 1:
            return None
        ours, theirs = (case.reference for case in cases.values())
        case = Case(
            replace(ours, name="candidate"), theirs, current_case.terms._replace(lines=False)
        )
        case.noise = current_case.noise
        return refused(case, (same_data, agreement))

    rulings = {name: ruling for name, ruling in outcomes.items() if ruling is not None}
    differences = differences_in_time(cases.values(), then.packages())
    alone = len(cases) == 1
    return Moves(
        then.name,
        rulings,
        apart,
        differences,
        alone=alone,
        measure=lambda: measured(recordings_by_side),
    )


def _moved_of(case: Case) -> Ruling | None:
    """Return how a run differs from the same run at another revision; None if it does not.

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
    # Only here, so that a check that passes does not import what explains one that fails.
    from pytest_precision.parity.explain.locate import what_differs

    reason = (
        f"{what_differs(by_rank)}, and its ranks hold different bits of one tensor at both ends"
    )
    return Ruling(outcome="fail", gate=ruling.gate, reason=reason)


def _torn_at_both_ends(finding: Finding) -> bool:
    """Return whether ranks hold different bits of one tensor, now and at the other revision."""
    ends = finding.pair.candidate, finding.pair.reference
    return all(end is not None and end.fault is not None for end in ends)


def differences_in_time(
    cases: Iterable[Case], packages: Mapping[str, list[str]]
) -> Mapping[str, list[str]]:
    """Return a dict from each setting or package that differs to its two values, now and then.

    Packages that one of the two lacks come last: they are many, and most of them decide nothing.
    """
    differences: dict[str, list[str]] = {}
    for case in cases:
        new_environment, old_environment = (side.trace.header.environment for side in case.sides)
        for name in dict.fromkeys([*new_environment, *old_environment]):
            if new_environment.get(name) != old_environment.get(name):
                differences[name] = [
                    new_environment.get(name, "none"),
                    old_environment.get(name, "none"),
                ]
    return differences | dict(sorted(packages.items(), key=lambda package: "none" in package[1]))
