"""Ruled check: what is recorded for a check, and the gates and comparisons that rule on it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_precision.check.case import Case
from pytest_precision.check.gates import GATES, ruled
from pytest_precision.check.mutation import mutants, noticed
from pytest_precision.check.recordings import MakeRecordings
from pytest_precision.check.side import Side
from pytest_precision.check.terms import Terms
from pytest_precision.parity.verdict import Ruling

if TYPE_CHECKING:
    from pytest_precision.check.baselines import KeptCheck
    from pytest_precision.check.then import Then

OF_BOTH = ("curves", "identities", "lost_updates", "oracle")
"""Figures of a check that have both sides, so that a check of one alone has none of them."""


@dataclass(frozen=True)
class RuledCheck:
    """What a check is held to, besides each other's numbers.

    Attributes:
        terms: of the test.
        then: the commit or installation that each side is compared with; None for none.
        kept: what keeps its baseline, or compares it with one; None for no baseline.
        mutate: share of known defects that it must notice; None if none are planted.
    """

    terms: Terms
    then: Then | None = None
    kept: KeptCheck | None = None
    mutate: float | None = None

    def of_pair(
        self, candidate: Side, reference: Side, record: MakeRecordings
    ) -> tuple[Ruling, dict[str, Any]]:
        """Return the ruling on two sides, and what was counted and measured.

        Raises:
            SideFailed, RanksSkipped, WorldSizeError: see `Recordings.both`.
            NoBaselineError, BaselineError: see `KeptCheck.ruled`.
        """
        with closing(record(candidate, reference)) as recordings:
            case = Case.opened(recordings, self.terms)
            ruling = ruled(case, GATES)
            figures = case.figures() | {"timing": recordings.timing}
            ruling, told = self._since(ruling, case, (candidate, reference), record)
            figures |= told
            if self.kept is not None:
                kept = {
                    recording.name: (str(side.layout), recording)
                    for side, recording in zip((candidate, reference), case.sides, strict=True)
                }
                ruling, told = self.kept.ruled(ruling, kept)
                figures |= told
            figures |= ruling.figures
            if ruling.outcome == "pass" and self.mutate is not None:
                figures["mutants"] = mutants(case)
                ruling = noticed(figures["mutants"], self.mutate) or ruling
            return ruling, figures

    def of_one(self, candidate: Side, record: MakeRecordings) -> tuple[Ruling, dict[str, Any]]:
        """Return the ruling on a side that is compared with its baseline, and figures.

        Without another side, nothing tells whether the environment moved it.

        Raises:
            SideFailed, RanksSkipped, WorldSizeError: see `Recordings.both`.
            NoBaselineError, BaselineError: see `KeptCheck.ruled`.
        """
        assert self.kept is not None
        with closing(record(candidate, candidate)) as recordings:
            case = Case.of_one(recordings, self.terms)
            ruling = ruled(case, GATES)
            told = {n: own for n, own in case.figures().items() if n not in OF_BOTH}
            sides = {"candidate": (str(candidate.layout), case.candidate)}
            ruling, kept = self.kept.ruled(ruling, sides)
            told |= {"timing": recordings.timing} | kept
            ruling, moved = self._since(ruling, case, (candidate,), record)
            return ruling, told | moved | dict(ruling.figures)

    def _since(
        self, now: Ruling, case: Case, sides: tuple[Side, ...], record: MakeRecordings
    ) -> tuple[Ruling, dict[str, Any]]:
        """Return the ruling with what was found in another commit, if one was asked for."""
        if self.then is None:
            return now, {}
        # Only here, so that a check of what there is now imports nothing of then.
        from pytest_precision.check.then import since_then

        return since_then(now, case, sides, self.then, record)
