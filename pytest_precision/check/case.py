"""The recorded runs of one check, and all that is derived from them to decide the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from pytest_precision.check.recordings import Recordings
from pytest_precision.check.side import Side
from pytest_precision.check.terms import Terms
from pytest_precision.layouts.dtypes import DTYPE_OF_NAME
from pytest_precision.matrix.contract import Contract
from pytest_precision.parity.compare.differing import Finding
from pytest_precision.parity.compare.divergences import Judgement, judge
from pytest_precision.parity.culprit import Named
from pytest_precision.parity.exempt import Exempt
from pytest_precision.parity.recorded_case import RecordedCase
from pytest_precision.recorders.variant import Variant
from pytest_precision.registered import FigureSpec, ProbeSpec, resolved
from pytest_precision.trace.moment import EVERYTHING, Window
from pytest_precision.trace.named_digests import adds_up
from pytest_precision.trace.recording import Recording

if TYPE_CHECKING:
    from pytest_precision.parity.compare.noise import NoiseMeter

_T = TypeVar("_T")


class Case:
    """The candidate and the reference of one check, recorded, with the results of comparing them.

    Args:
        candidate: the side under test.
        reference: the side that it must agree with.
        terms: of the test.
        again: records both sides again; None for what was recorded elsewhere.
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
        self._whole: Case | None = None
        self._derived: dict[Callable[[RecordedCase], Any], Any] = {}

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
                candidate_recording = recordings.ours(window)
                sides = candidate_recording, replace(candidate_recording, name="reference")
            else:
                sides = recordings.both(window)
            case = cls(*sides, terms, recordings, window, alone=alone)
            if case._decides:
                break
        return case

    @property
    def _decides(self) -> bool:
        """Return whether the recorded form, hashes or values, suffices to compare the runs."""
        headers = [side.trace.header for side in self.sides]
        digests = {header.digests and header.digest for header in headers}
        return len(digests) == 1 and all(side.trace.decisive for side in self.sides)

    def beside(self, mine: Recording, recordings: Recordings) -> Case:
        """Make a check that compares a run with the same run at another revision.

        Args:
            mine: the side as it is now.
            recordings: have the other revision's recording as their reference.
        """
        reference_recording = recordings.theirs(self.window)
        candidate_recording = replace(mine, name="candidate")
        case = Case(candidate_recording, reference_recording, self.terms, recordings, self.window)
        if case._decides:
            return case
        return Case(*recordings.both(EVERYTHING), self.terms, recordings, EVERYTHING)

    def of_candidate_alone(self, name: str) -> Case:
        """Return a check of the candidate by itself, without a reference."""
        mine = replace(self.candidate, name=name)
        return Case(mine, self.reference, self.terms, self.again, self.window, alone=True)

    def with_whole_tensors(self) -> Case:
        """Return this check with values where it has digests of shards, which may be cut anew.

        It is the same check where digests are of whole tensors, as a baseline keeps them.
        """
        headers = [side.trace.header for side in self.judged]
        if self.again is None or not any(h.digests and adds_up(h.digest) for h in headers):
            return self
        if not self._alone:
            sides = self.again.both(EVERYTHING)
        else:
            sides = self.again.ours(EVERYTHING), self.reference
        return Case(*sides, self.terms, self.again, EVERYTHING, alone=self._alone)

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
    def compared(self) -> set[str]:
        """Return the kinds of tensors, such as `grad`, that were compared."""
        return {kind for kind, _ in self.judgement.spread}

    @cached_property
    def judgement(self) -> Judgement:
        """Compare every pair of tensors when first asked (by `agreement`); return the results."""
        candidate_trace, reference_trace = (side.trace for side in self.sides)
        return judge(candidate_trace, reference_trace, self.terms.criteria, self.noise)

    @cached_property
    def noise(self) -> NoiseMeter | None:
        """Measure the reference's rounding noise; None if not needed or if it cannot run again."""
        runs = self.terms.criteria.noise_runs
        if self.again is None or not runs:
            return None
        from pytest_precision.parity.compare.noise import NoiseMeter

        noisy_traces = [
            self.again.theirs(self.window, Variant(noise=number + 1, updates=False)).trace
            for number in range(runs)
        ]
        return NoiseMeter(self.reference.trace, noisy_traces, self.unit)

    @property
    def unit(self) -> float:
        """Return the machine epsilon of the dtype in which the reference computes."""
        return torch.finfo(DTYPE_OF_NAME.get(self.reference.cell.precision, torch.bfloat16)).eps

    @property
    def exempt(self) -> Exempt:
        """Return the tensors that the test leaves out of the checks of a run against itself."""
        return self.terms.exempt

    @property
    def whole(self) -> Case:
        """Return the check of all steps, which this one looks closer at, or this one."""
        return self._whole or self

    def once(self, make: Callable[[RecordedCase], _T]) -> _T:
        """Return a function's result for this check; call the function only the first time."""
        if make not in self._derived:
            self._derived[make] = make(self)
        derived: _T = self._derived[make]
        return derived

    def around(self, step: int) -> Case:
        """Return this check with tensor values around a step; record again if it has only hashes.

        It is the same check where there are values already, or where none can be recorded.
        """
        if self.again is None or not self.candidate.trace.header.digests:
            return self
        window = Window.around(step)
        closer_case = Case(*self.again.both(window), self.terms, self.again, window)
        closer_case._whole = self.whole
        return closer_case

    def otherwise_started(self) -> Case | None:
        """Record both runs from other initial weights; None without a workload or a way to rerun.

        Raises:
            SideFailed: if that run failed.
        """
        if self.again is None or self.again.candidate.workload is None:
            return None
        return Case(*self.again.both(self.window, Variant(start=1, updates=False)), self.terms)

    def judgements(self, field: str) -> list[Callable[..., Any]]:
        """Return the functions that this cell's judgements have in a field, such as `explains`."""
        return self.terms.registered.functions(field, bare=self.terms.bare)

    def culprit(self, finding: Finding) -> Named:
        """Return the operation at fault, for which both sides may run again."""
        named_by = self.judgements("names_line") if self.terms.lines else ()
        for name_line in named_by:
            named: Named = name_line(self, finding)
            return named
        return Named(None)

    def contracts(self, side: Recording) -> list[Contract]:
        """List the dtypes and code paths that matrix axes and, for the candidate, the test require.

        Of what was recorded elsewhere, nobody asks its cell's.
        """
        cell = [] if self.again is None else [Contract.of(side.cell)]
        test_contract = self.terms.contract if side is self.candidate else None
        return cell if test_contract is None else [*cell, test_contract]

    def figures(self) -> dict[str, Any]:
        """Return counts and measurements of a check for report.json, whatever its outcome.

        Those that tell both sides apart are left out where the candidate is alone.
        """
        return {
            "environment": {side.name: side.trace.header.environment for side in self.sides},
            "observations": self.judgement.observations,
            "bytes": self.judgement.bytes,
            "left_out": self.judgement.left_out,
            "noise": self.noise.largest if self.noise is not None else None,
            **self._made(
                (figure, probe)
                for figure, probe in self._figure_specs()
                if not (self._alone and figure.of_both)
            ),
        }

    def figures_of_values(self) -> dict[str, Any]:
        """Return the figures that a failure has made of the values around its difference."""
        return self._made(
            (figure, probe) for figure, probe in self._figure_specs() if figure.of_values
        )

    def _figure_specs(self) -> Iterator[tuple[FigureSpec, ProbeSpec]]:
        for probe in self.terms.registered.of(bare=self.terms.bare):
            for figure in probe.figures:
                yield figure, probe

    def _made(self, specs: Iterable[tuple[FigureSpec, ProbeSpec]]) -> dict[str, Any]:
        return {figure.name: resolved(figure.function, probe)(self) for figure, probe in specs}
