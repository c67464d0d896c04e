"""The recorded runs of one check, and all that is derived from them to decide the result."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from pytest_precision.check.recordings import Recordings
from pytest_precision.check.side import Side
from pytest_precision.check.terms import Terms
from pytest_precision.layouts.dtypes import DTYPE_OF_NAME
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.contract import Contract
from pytest_precision.parity.compare.divergences import Finding, Judgement, judge
from pytest_precision.parity.explain import curves, required_tolerance
from pytest_precision.parity.self_checks.consistency import Consistency
from pytest_precision.parity.self_checks.coverage_gaps import unexercised
from pytest_precision.parity.self_checks.identities import Contradiction
from pytest_precision.parity.self_checks.oracle_findings import (
    gradient_summary,
    summary_of_rule,
    wrong_gradients,
)
from pytest_precision.trace.gradient_log import GradientBreach
from pytest_precision.trace.moment import EVERYTHING, Window
from pytest_precision.trace.oracle_log import OracleLog
from pytest_precision.trace.recording import Recording

if TYPE_CHECKING:
    from pytest_precision.check.lines import Named
    from pytest_precision.parity.compare.noise import NoiseMeter


class Case:
    """The candidate and the reference of one check, recorded, with the results of comparing them.

    Args:
        candidate: the side under test.
        reference: the side that it must agree with.
        terms: of the test.
        again: records both sides again; None for what was recorded elsewhere, or with a mutant.
        window: steps whose values are compared; digests of all steps without it.
        alone: whether the candidate alone is judged by itself.

    Attributes:
        candidate, reference, terms, again, window: as given.
    """

    def __init__(
        self,
        candidate: Recording,
        reference: Recording,
        terms: Terms,
        again: Recordings | None = None,
        window: Window | None = None,
        *,
        alone: bool = False,
    ) -> None:
        self.candidate, self.reference = candidate, reference
        self.terms = terms
        self.again = again
        self.window = window
        self._alone = alone

    @classmethod
    def opened(cls, recordings: Recordings, terms: Terms, *, alone: bool = False) -> Case:
        """Record candidate and reference: hashes if these suffice for the comparison, else values.

        Args:
            recordings: record both sides.
            terms: of the test.
            alone: whether to record the candidate alone, which is its own reference.
        """
        for window in (None, EVERYTHING) if terms.criteria.bitwise else (EVERYTHING,):
            if alone:
                mine = recordings.ours(window)
                sides = mine, replace(mine, name="reference")
            else:
                sides = recordings.both(window)
            case = cls(*sides, terms, recordings, window, alone=alone)
            if case._decides:
                break
        return case

    @property
    def _decides(self) -> bool:
        """Return whether the recorded form, hashes or values, suffices to compare the runs."""
        digests = {side.trace.header.digests for side in self.sides}
        return len(digests) == 1 and all(side.trace.decisive for side in self.sides)

    def beside(self, mine: Recording, recordings: Recordings) -> Case:
        """Make a check that compares a run with the same run at another revision.

        Args:
            mine: the side as it is now.
            recordings: have the other revision's recording as their reference.
        """
        theirs = recordings.theirs(self.window)
        ours = replace(mine, name="candidate")
        case = Case(ours, theirs, self.terms, recordings, self.window)
        if case._decides:
            return case
        return Case(*recordings.both(EVERYTHING), self.terms, recordings, EVERYTHING)

    def of_candidate_alone(self, name: str) -> Case:
        """Return a check of the candidate by itself, without a reference."""
        mine = replace(self.candidate, name=name)
        return Case(mine, self.reference, self.terms, self.again, self.window, alone=True)

    @property
    def sides(self) -> tuple[Recording, Recording]:
        """Return the candidate and the reference."""
        return self.candidate, self.reference

    @property
    def judged(self) -> tuple[Recording, ...]:
        """Return the runs that are also checked individually: both, or a lone candidate."""
        return (self.candidate,) if self._alone else self.sides

    def recorded(self) -> list[tuple[Side, Recording]]:
        """List the candidate, and the reference if the check has one, with their recorded runs."""
        assert self.again is not None
        sides = self.again.candidate, self.again.reference
        return list(zip(sides[: len(self.judged)], self.judged, strict=True))

    @property
    def cells(self) -> tuple[Cell, Cell]:
        """Return the configurations in which the candidate and the reference ran."""
        return self.candidate.cell, self.reference.cell

    @property
    def compared(self) -> set[str]:
        """Return the kinds of tensors, such as `grad`, that were compared."""
        return {kind for kind, _ in self.judgement.spread}

    @cached_property
    def judgement(self) -> Judgement:
        """Compare every pair of tensors when first asked (by `agreement`); return the results."""
        ours, theirs = (side.trace for side in self.sides)
        return judge(ours, theirs, self.terms.criteria, self.noise)

    @cached_property
    def noise(self) -> NoiseMeter | None:
        """Measure the reference's rounding noise; None if not needed or if it cannot run again."""
        runs = self.terms.criteria.noise_runs
        if self.again is None or not runs:
            return None
        from pytest_precision.parity.compare.noise import NoiseMeter

        noisy = [
            self.again.theirs(self.window, noise=number + 1, updates=False).trace
            for number in range(runs)
        ]
        return NoiseMeter(self.reference.trace, noisy, self.unit)

    @property
    def unit(self) -> float:
        """Return the machine epsilon of the dtype in which the reference computes."""
        return torch.finfo(DTYPE_OF_NAME.get(self.reference.cell.precision, torch.bfloat16)).eps

    @cached_property
    def consistency(self) -> dict[str, Consistency]:
        """Check identities, such as weight = cast master, in each run; {} if all are exempt."""
        exempt = self.terms.exempt
        if exempt.all:
            return {}
        return {s.name: Consistency.of(s, self.logs[s.name], exempt) for s in self.judged}

    @cached_property
    def logs(self) -> dict[str, OracleLog]:
        """Return for each run the log of checking its weight updates by the optimizer's formula."""
        return {side.name: side.oracle for side in self.judged}

    def contradictions(self) -> list[tuple[str, Contradiction]]:
        """List the runs in which an identity, as weight = cast master, fails, with the failure."""
        consistencies = self.consistency.items()
        return [
            (name, consistency.breach)
            for name, consistency in consistencies
            if consistency.breach is not None
        ]

    def identities(self) -> dict[str, Any]:
        """Return for report.json which identities, as weight = cast master, hold in each run."""
        return {name: consistency.as_dict() for name, consistency in self.consistency.items()}

    def wrong_gradient(self) -> GradientBreach | None:
        """Return the candidate's first wrong gradient, unless the reference has one, too."""
        ours, theirs = (wrong_gradients([s], self.terms.exempt) for s in self.sides)
        return ours[0].breach if ours and not theirs else None

    def around(self, step: int) -> Case:
        """Return this check with tensor values around a step; record again if it has only hashes.

        It is the same check where there are values already, or where none can be recorded.
        """
        if self.again is None or not self.candidate.trace.header.digests:
            return self
        window = Window.around(step)
        closer = Case(*self.again.both(window), self.terms, self.again, window)
        closer.logs = self.logs
        return closer

    def otherwise_started(self) -> Case | None:
        """Record both runs from other initial weights; None without a workload or a way to rerun.

        Raises:
            SideFailed: if that run failed.
        """
        if self.again is None or self.again.candidate.workload is None:
            return None
        return Case(*self.again.both(self.window, start=1, updates=False), self.terms)

    def culprit(self, finding: Finding) -> Named:
        """Run candidate and reference again with operation logs; return the operation at fault."""
        # Only here, so that a check that passes does not import what explains one that fails.
        from pytest_precision.check.lines import Named, culprit_named, recorded_lines

        root = self.terms.root
        if not self.terms.lines:
            return Named(None)
        rule = self.terms.criteria.of_tensor(finding.pair.kind, finding.pair.name)
        bound = rule.criterion.share if rule.criterion.tolerates else None
        if self.again is None:
            return recorded_lines(finding, self.sides, root, bound)
        return culprit_named(self.again, finding, self.sides, root, bound)

    def mutated(self, mutant: str) -> Case:
        """Record the candidate again with the planted defect (mutant) of this name.

        Raises:
            SideFailed: if that run failed.
        """
        assert self.again is not None
        mutated = self.again.ours(self.window, mutant=mutant)
        case = Case(mutated, self.reference, self.terms)
        case.noise = self.noise
        return case

    def contracts(self, side: Recording) -> list[Contract]:
        """List the dtypes and code paths that matrix axes and, for the candidate, the test require.

        Of what was recorded elsewhere, or with a mutant, nobody asks its cell's.
        """
        cell = [] if self.again is None else [Contract.of(side.cell)]
        test_contract = self.terms.contract if side is self.candidate else None
        return cell if test_contract is None else [*cell, test_contract]

    def figures(self) -> dict[str, Any]:
        """Return counts and measurements of a check for report.json, whatever its outcome.

        Those that tell both sides apart are left out where the candidate is alone.
        """
        of_both = {} if self._alone else self._figures_of_both()
        return of_both | {
            "environment": {side.name: side.trace.header.environment for side in self.sides},
            "observations": self.judgement.observations,
            "bytes": self.judgement.bytes,
            "left_out": self.judgement.left_out,
            "needed": required_tolerance.columns(self.judgement),
            "unexercised": unexercised(
                self.candidate.trace, self.candidate.cell, self.candidate.data
            ),
        }

    def _figures_of_both(self) -> dict[str, Any]:
        return {
            "lost_updates": {side.name: curves.summary(side.updates) for side in self.sides},
            "oracle": {
                side.name: summary_of_rule(side.oracle, self.terms.exempt)
                | {"gradients": gradient_summary(side.gradients, self.terms.exempt)}
                for side in self.sides
            },
            "identities": self.identities() or None,
            "curves": curves.table(*self.sides),
        }
