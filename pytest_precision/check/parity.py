"""parity.check: one cell from two recorded runs to a verdict."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pytest_precision._visible import visible
from pytest_precision.check.recordings import Recordings
from pytest_precision.check.side import Side
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.contract import Contract
from pytest_precision.matrix.declarations import Declared
from pytest_precision.options import Settings
from pytest_precision.parity.criterion import Criteria, Criterion
from pytest_precision.parity.verdict import Verdict
from pytest_precision.ranks.blame import require_observations
from pytest_precision.ranks.code.import_path import ImportPath
from pytest_precision.ranks.errors import (
    DevicesBusyError,
    RankError,
    RanksSkipped,
    WorldSizeError,
)
from pytest_precision.ranks.pool import RankPool
from pytest_precision.ranks.state.environment import Environment
from pytest_precision.ranks.state.leaks import PrecisionLeakWarning
from pytest_precision.trace.cache import TraceCache
from pytest_precision.trace.moment import EVERYTHING, Window


class ParityError(AssertionError):
    """A candidate does not agree with its reference, or the check proves nothing.

    The first line names the defect; `verdict` is the same as plain data.
    """

    def __init__(self, verdict: Verdict) -> None:
        super().__init__("\n".join([verdict.reason, *verdict.details]))
        self.verdict = verdict


class Terms(NamedTuple):
    """What `Parity.check` was asked to hold a candidate to."""

    criteria: Criteria
    max_lost_updates: float | None
    contract: Contract | None


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
    ranks: RankPool
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
        contract: Contract | None = None,
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
            contract: what the candidate must have stored and done, beside what its cell says: the
                dtype of parameters, fused accumulation, quantized parameters.

        Returns:
            The verdict, if it is `pass`.

        Raises:
            ParityError: with any other verdict.
            TypeError: for a callable that cannot travel to the ranks, for a limit that is no
                number, and for a `reference_cell` or `contract` that is none.
            ValueError: for a limit that is no share.
        """
        __tracebackhide__ = True
        started = time.perf_counter()
        _expect_share(max_lost_updates)
        _expect_type("reference_cell", reference_cell, Cell, "write cell.replace(world_size=1)")
        _expect_type("contract", contract, Contract, "write Contract(dtypes=..., paths=...)")
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
        with self.traces.lock:
            verdict = self._judged(verdict, *runs, Terms(criteria, max_lost_updates, contract))
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
    ) -> tuple[Side, Side]:
        ours = ImportPath.of(candidate, "candidate")
        theirs = ImportPath.of(reference, "reference")
        made_by = ImportPath.of(workload, "workload")
        cells = self.cell, reference_cell or self.cell
        cell, other_cell = (
            replace(
                cell,
                device=self.ranks.device,
                backend=self.settings.backend,
                shared_by=math.lcm(*(cell.world_size for cell in cells)),
            )
            for cell in cells
        )
        caller = Environment.now()
        mine = self._declared(cell, candidate, reference, workload)
        others = self._declared(other_cell, reference, candidate, workload)
        return (
            Side.of(ours, theirs, made_by, cell, mine, caller),
            Side.of(theirs, ours, made_by, other_cell, others, caller),
        )

    def _declared(
        self,
        cell: Cell,
        layout: Callable[..., Any],
        other: Callable[..., Any],
        workload: Callable[..., Any],
    ) -> Declared:
        """What all declare that run in a cell; the other layout goes on there after a `swap`."""
        running = (layout, other, workload) if cell.swaps else (layout, workload)
        return Declared.of(*running).allowing(self.settings.may_leave)

    def _judged(self, verdict: Verdict, ours: Side, theirs: Side, terms: Terms) -> Verdict:
        if ours.repeats(theirs):
            reason = "the candidate and the reference are the same layout in the same cell"
            return self._failed(verdict, "vacuous", reason)
        unequal = _unequal_steps(ours.cell, theirs.cell)
        if unequal:
            return self._failed(verdict, "error", unequal)
        sides = Recordings(ours, theirs, self._record, self.traces)
        try:
            return self._compared(verdict, sides, terms)
        except (RanksSkipped, WorldSizeError) as error:
            pytest.skip(str(error))
        except (RankError, DevicesBusyError, PrecisionLeakWarning, OSError) as error:
            what, *traceback = (str(error) or repr(error)).splitlines()
            reason = f"the {sides.recording} failed: {what}"
            return self._failed(verdict, "error", reason, traceback)
        finally:
            sides.close()

    def _record(self, run: Side, window: Window | None, folder: Path) -> None:
        counts = self.ranks.run(
            run.cell.world_size,
            Side.record,
            run,
            str(folder),
            window,
            timeout=self.settings.timeout,
            needs=run.needs,
            name=run.layout.name,
        )
        require_observations(counts, run.layout.name)

    def _compared(self, verdict: Verdict, sides: Recordings, terms: Terms) -> Verdict:
        from pytest_precision.check import contract
        from pytest_precision.parity import curves, explain, given
        from pytest_precision.parity.guards import disturbed, unproved
        from pytest_precision.parity.judge import judge
        from pytest_precision.parity.located import divergence
        from pytest_precision.trace.data import DataLog
        from pytest_precision.trace.updates import UpdateLog

        traces = sides.traces(None if terms.criteria.bitwise else EVERYTHING)
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
            environment={side: trace.header.environment for side, trace in traces.items()},
        )
        cells = {"candidate": sides.candidate.cell, "reference": sides.reference.cell}
        data = {
            side: DataLog.read(trace.folder, trace.header.world_size)
            for side, trace in traces.items()
        }
        unlike = given.other_data(data, cells)
        if unlike is not None:
            return self._failed(verdict, "error", unlike, [given.ADVICE])
        judgement = judge(traces["candidate"], traces["reference"], terms.criteria)
        verdict = replace(
            verdict,
            observations=judgement.observations,
            bytes=judgement.bytes,
            left_out=judgement.left_out,
        )
        if judgement.first is not None:
            step = judgement.first.pair.moment.step
            if traces["candidate"].header.digests:  # they say when; the values around it say what
                traces = sides.traces(Window.around(step))
                judgement = judge(traces["candidate"], traces["reference"], terms.criteria)
            if judgement.first is None or judgement.first.pair.moment.step != step:
                reason = f"not repeatable: step {step} differed, and in a second run did not"
                return self._failed(verdict, "fail", reason)
            finding = judgement.first
            verdict = replace(verdict, divergence=divergence(finding))
            details = [
                *explain.statistics_lines(finding),
                *explain.swap_lines(finding, cells),
                *(f"In the {s}: {b}" for s, t in traces.items() for b in t.header.breaches),
                *curves.lost_lines(logs),
                "",
                *explain.spread_table(judgement),
                "",
            ]
            return self._failed(verdict, "fail", explain.headline(finding, judgement), details)
        for side, other in explain.OTHER.items():
            still = disturbed(traces[side], traces[other], terms.criteria)
            if still is not None:
                if traces[side].header.digests:
                    traces = sides.traces(Window.around(still.pair.moment.step))
                    still = disturbed(traces[side], traces[other], terms.criteria) or still
                verdict = replace(verdict, divergence=divergence(still))
                details = [
                    *explain.statistics_lines(still, "before"),
                    *explain.swap_lines(still, {side: cells[side]}),
                ]
                return self._failed(verdict, "fail", explain.disturbance(still, side), details)
        for side, run in (("candidate", sides.candidate), ("reference", sides.reference)):
            asked = terms.contract if side == "candidate" else None
            outcome, words = contract.judged(traces[side], run.cell, asked)
            if words:
                return self._failed(verdict, outcome, f"{words} in the {side}")
        if terms.max_lost_updates is not None:
            unknown = curves.unmeasured(logs["candidate"])
            if unknown is not None:
                return self._failed(verdict, "vacuous", f"{unknown}; leave max_lost_updates out")
            lost = curves.beyond(logs["candidate"], terms.max_lost_updates)
            if lost is not None:
                return self._failed(verdict, "fail", lost, curves.lost_lines(logs))
        empty = unproved(traces["candidate"], traces["reference"], terms.criteria, judgement)
        return self._failed(verdict, "vacuous", empty[0], empty[1:]) if empty else verdict

    def _failed(
        self, verdict: Verdict, outcome: str, reason: str, details: list[str] | None = None
    ) -> Verdict:
        cell = self.nodeid.partition("[")[2].removesuffix("]") or self.nodeid
        lines = [
            f"  candidate  {verdict.candidate}",
            f"  reference  {verdict.reference}",
            f"  criterion  {verdict.criterion}",
            *(f"  {line}" for line in details or ()),
            f"  Repeat with: pytest --precision-matrix {shlex.quote(self.nodeid)}",
        ]
        word = "" if outcome == "fail" else f"{outcome}: "
        return replace(
            verdict,
            outcome=outcome,
            reason=visible(f"{cell}: {word}{reason}"),
            details=tuple(map(visible, lines)),
        )


def _unequal_steps(cell: Cell, reference_cell: Cell) -> str:
    """What is wrong with cells that train for unequal times, whose steps have no counterpart."""
    ours, theirs = (side.operations.count("train") for side in (cell, reference_cell))
    if ours == theirs:
        return ""
    return (
        f"expected as many train steps on both sides but got {ours} in the candidate's "
        f"sequence={cell.sequence!r} and {theirs} in the reference's "
        f"sequence={reference_cell.sequence!r}; give reference_cell one that trains {ours}"
    )


def _expect_type(name: str, given: object, wanted: type, advice: str) -> None:
    if given is not None and not isinstance(given, wanted):
        raise TypeError(
            f"expected a {wanted.__name__} but got {name}={given!r} ({type(given).__name__}); "
            f"{advice}"
        )


def _expect_share(limit: object) -> None:
    if limit is None:
        return
    got = f"max_lost_updates={limit!r} ({type(limit).__name__})"
    if isinstance(limit, bool) or not isinstance(limit, (int, float)):
        raise TypeError(f"expected a share from 0 to 1 but got {got}; pass a Python float")
    if not 0 <= limit <= 1:
        raise ValueError(f"expected a share from 0 to 1 but got {got}; 5 % is 0.05")
