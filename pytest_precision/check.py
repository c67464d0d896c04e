"""parity.check: one cell from two recorded runs to a verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_precision.cell import Cell
from pytest_precision.options import Settings
from pytest_precision.parity.criterion import Criteria, Criterion
from pytest_precision.parity.verdict import Divergence, Verdict
from pytest_precision.ranks.errors import RankError, WorldSizeError
from pytest_precision.ranks.pool import Ranks
from pytest_precision.ranks.travel import ImportPath
from pytest_precision.run import Run
from pytest_precision.sides import Sides
from pytest_precision.trace.cache import TraceCache
from pytest_precision.trace.moment import EVERYTHING, Window

if TYPE_CHECKING:
    from pytest_precision.parity.judge import Finding
    from pytest_precision.trace.store import Trace


class ParityError(AssertionError):
    """A candidate does not agree with its reference, or the check proves nothing.

    The first line names the defect; `verdict` is the same as plain data.
    """

    def __init__(self, verdict: Verdict) -> None:
        super().__init__("\n".join([verdict.reason, *verdict.details]))
        self.verdict = verdict


@dataclass(repr=False)
class Parity:
    """The fixture of that name, bound to one test.

    Attributes:
        nodeid: pytest's id of the test.
        cell: that the test runs in.
        settings: of the session, with the marker's.
        ranks: the session's rank groups.
        traces: the session's recorded runs.
        verdicts: of all checks of this test so far.
    """

    nodeid: str
    cell: Cell
    settings: Settings
    ranks: Ranks
    traces: TraceCache
    verdicts: list[Verdict] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<parity of {self.nodeid}>"

    def check(
        self,
        candidate: Callable[..., Any],
        reference: Callable[..., Any],
        *,
        workload: Callable[..., Any],
        criterion: Criterion | Mapping[str, Criterion] | None = None,
        reference_cell: Cell | None = None,
        max_lost_updates: float | None = None,
    ) -> Verdict:
        """Train both layouts through the cell's sequence and compare everything observed.

        Args:
            candidate: the layout under test: a module-level callable `(workload, cell) -> Engine`,
                or `functools.partial` of one.
            reference: the layout that it must agree with.
            workload: makes the workload of both: a module-level class or function, or
                `functools.partial` of one.
            criterion: how equal two tensors must be, one for all or by kind; bitwise unless given.
            reference_cell: where the reference runs, if not in the test's cell:
                `cell.replace(world_size=1)`.
            max_lost_updates: share, from 0 to 1, of the updates of any one tensor over the whole
                run that the candidate may lose: whose exact arithmetic moves the effective weight
                and whose rounding leaves every bit of it. An update counts as much as it would have
                moved the weight. Without it, lost updates are only reported.

        Returns:
            The verdict, if it is `pass`.

        Raises:
            ParityError: with any other verdict.
            TypeError: for a callable that cannot travel to the ranks, and for a limit that is no
                number.
            ValueError: for a limit that is no share.
        """
        __tracebackhide__ = True
        started = time.perf_counter()
        _expect_share(max_lost_updates)
        runs = self._runs(candidate, reference, workload, reference_cell)
        criteria = Criteria.of(criterion)
        verdict = Verdict(
            nodeid=self.nodeid,
            axes=self.cell.axes,
            candidate=str(runs[0].layout),
            reference=str(runs[1].layout),
            workload=str(runs[0].workload),
            criterion=str(criteria),
            outcome="pass",
        )
        verdict = self._judged(verdict, *runs, criteria, max_lost_updates)
        verdict = replace(verdict, seconds=time.perf_counter() - started)
        self.verdicts.append(verdict)
        if verdict.outcome != "pass":
            raise ParityError(verdict)
        return verdict

    def _runs(
        self,
        candidate: Callable[..., Any],
        reference: Callable[..., Any],
        workload: Callable[..., Any],
        reference_cell: Cell | None,
    ) -> tuple[Run, Run]:
        ours = ImportPath.of(candidate, "candidate")
        theirs = ImportPath.of(reference, "reference")
        made_by = ImportPath.of(workload, "workload")
        cell = replace(self.cell, device=self.ranks.device)
        other_cell = replace(reference_cell or self.cell, device=self.ranks.device)
        return Run.of(ours, theirs, made_by, cell), Run.of(theirs, ours, made_by, other_cell)

    def _judged(
        self, verdict: Verdict, ours: Run, theirs: Run, criteria: Criteria, limit: float | None
    ) -> Verdict:
        if ours == theirs:
            reason = "the candidate and the reference are the same layout in the same cell"
            return self._failed(verdict, "vacuous", reason)
        sides = Sides(ours, theirs, self._record, self.traces)
        try:
            return self._compared(verdict, sides, criteria, limit)
        except WorldSizeError as error:
            pytest.skip(str(error))
        except RankError as error:
            what, *traceback = str(error).splitlines()
            reason = f"the {sides.recording} failed: {what}"
            return self._failed(verdict, "error", reason, traceback)
        finally:
            sides.close()

    def _record(self, run: Run, window: Window | None, folder: Path) -> None:
        self.ranks.run(
            run.cell.world_size,
            Run.record,
            run,
            str(folder),
            window,
            timeout=self.settings.timeout,
        )

    def _compared(
        self, verdict: Verdict, sides: Sides, criteria: Criteria, limit: float | None
    ) -> Verdict:
        from pytest_precision.parity import curves, explain
        from pytest_precision.parity.guards import disturbed, vacuous
        from pytest_precision.parity.judge import judge
        from pytest_precision.trace.updates import UpdateLog

        traces = sides.traces(None if criteria.bitwise else EVERYTHING)
        if not all(trace.decisive for trace in traces.values()):
            traces = sides.traces(EVERYTHING)
        logs = {
            side: UpdateLog.read(trace.folder, trace.header.world_size)
            for side, trace in traces.items()
        }
        verdict = replace(
            verdict,
            lost_updates={side: curves.summary(log) for side, log in logs.items()},
            curves=curves.table(traces, logs),
        )
        judgement = judge(traces["candidate"], traces["reference"], criteria)
        verdict = replace(verdict, observations=judgement.observations, bytes=judgement.bytes)
        if judgement.first is not None:
            step = judgement.first.pair.moment.step
            if traces["candidate"].header.digests:  # they say when; the values around it say what
                traces = sides.traces(Window.around(step))
                judgement = judge(traces["candidate"], traces["reference"], criteria)
            if judgement.first is None or judgement.first.pair.moment.step != step:
                reason = f"not repeatable: step {step} differed, and in a second run did not"
                return self._failed(verdict, "fail", reason)
            finding = judgement.first
            verdict = replace(verdict, divergence=_divergence(finding, traces["reference"]))
            details = [
                *explain.statistics_lines(finding),
                *curves.lost_lines(logs),
                "",
                *explain.spread_table(judgement),
                "",
            ]
            return self._failed(verdict, "fail", explain.headline(finding, judgement), details)
        for side, trace in traces.items():
            still = disturbed(trace)
            if still is not None:
                if trace.header.digests:
                    trace = sides.traces(Window.around(still.pair.moment.step))[side]
                    still = disturbed(trace) or still
                verdict = replace(verdict, divergence=_divergence(still, trace))
                details = explain.statistics_lines(still)
                return self._failed(verdict, "fail", explain.disturbance(still, side), details)
        for side, run in (("candidate", sides.candidate), ("reference", sides.reference)):
            nothing = vacuous(traces[side], run.cell)
            if nothing is not None:
                return self._failed(verdict, "vacuous", f"{nothing} in the {side}")
        if judgement.observations == 0:
            return self._failed(verdict, "vacuous", "nothing was compared")
        if limit is None:
            return verdict
        unknown = curves.unmeasured(logs["candidate"])
        if unknown is not None:
            return self._failed(verdict, "vacuous", f"{unknown}; leave max_lost_updates out")
        lost = curves.beyond(logs["candidate"], limit)
        if lost is not None:
            return self._failed(verdict, "fail", lost, curves.lost_lines(logs))
        return verdict

    def _failed(
        self, verdict: Verdict, outcome: str, reason: str, details: list[str] | None = None
    ) -> Verdict:
        cell = self.nodeid.partition("[")[2].removesuffix("]") or self.nodeid
        lines = [
            f"  candidate  {verdict.candidate}",
            f"  reference  {verdict.reference}",
            f"  criterion  {verdict.criterion}",
            *(f"  {line}" for line in details or ()),
            f"  Repeat with: pytest --precision-matrix '{self.nodeid}'",
        ]
        word = "" if outcome == "fail" else f"{outcome}: "
        return replace(
            verdict, outcome=outcome, reason=f"{cell}: {word}{reason}", details=tuple(lines)
        )


def _expect_share(limit: object) -> None:
    if limit is None:
        return
    got = f"max_lost_updates={limit!r} ({type(limit).__name__})"
    if isinstance(limit, bool) or not isinstance(limit, (int, float)):
        raise TypeError(f"expected a share from 0 to 1 but got {got}; pass a Python float")
    if not 0 <= limit <= 1:
        raise ValueError(f"expected a share from 0 to 1 but got {got}; 5 % is 0.05")


def _divergence(finding: Finding, reference: Trace) -> Divergence:
    from pytest_precision.parity import explain
    from pytest_precision.parity.signature import describe

    moment, pair = finding.pair.moment, finding.pair
    statistics = None if finding.difference is None else finding.difference.statistics
    ours: Any = None
    theirs: Any = None
    index = None if statistics is None else statistics.first
    if statistics is not None:
        ours, theirs = statistics.candidate_first, statistics.reference_first
    elif finding.problem in ("dtype", "shape"):
        ours, theirs = explain.property_of(finding)
    elif finding.problem in ("missing", "extra"):
        ours, theirs = ("absent", "present")[:: 1 if finding.problem == "missing" else -1]
    return Divergence(
        op=moment.op,
        step=moment.step,
        phase=moment.phase,
        kind=pair.kind,
        name=pair.name,
        rank=explain.rank_of(finding, index or ()) if index is not None else pair.rank,
        index=index,
        candidate=ours,
        reference=theirs,
        ulp=None if statistics is None else statistics.max_ulp,
        rel_l2=None if statistics is None else statistics.rel_l2,
        mismatched=None if statistics is None else statistics.mismatched / statistics.numel,
        signature=describe(finding, reference),
    )
