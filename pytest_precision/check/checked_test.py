"""Run the checks of one test: record both sides, decide the outcome, and keep the results.

What compares is imported where it is called: a session that compares nothing needs no torch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_precision.check import failed_check
from pytest_precision.check.recordings import MakeRecordings, Recordings
from pytest_precision.check.side import Side, is_pure
from pytest_precision.check.terms import Terms
from pytest_precision.errors import ParityError, expected_but_got, is_bad_input, named
from pytest_precision.matrix.cell import Cell, axes_of
from pytest_precision.matrix.declared import Declared
from pytest_precision.options import Settings
from pytest_precision.parity.verdict import Ruling, Verdict, again
from pytest_precision.ranks.code.import_path import ImportPath
from pytest_precision.ranks.pool import RankPool
from pytest_precision.ranks.state.definitions import Definitions
from pytest_precision.ranks.state.environment import Environment
from pytest_precision.recorders.rank_probes import RankProbe, rank_probes
from pytest_precision.recorders.scripts.script import expect_signature, is_script, resumes, way_in
from pytest_precision.recorders.variant import Variant
from pytest_precision.registered import OF_PACKAGE, Registered
from pytest_precision.trace.cache import TraceCache

if TYPE_CHECKING:
    from pytest_precision.check.ruled_check import FurtherRule

__tracebackhide__ = is_bad_input

RecordAndRule = Callable[[], tuple[Ruling, dict[str, Any]]]
"""Records what a check needs, and rules on it; with figures."""


@dataclass(repr=False)
class CheckedTest:
    """Runs the checks of one test, on the rank processes and with the cache of the pytest session.

    Attributes:
        nodeid: pytest's id of the test.
        cell: the cell that the test runs in.
        settings: settings of the session, with those of the marker.
        ranks: the session's rank groups.
        traces: the session's recorded runs.
        verdicts: verdicts of all checks of this test so far.
        root: the folder that node ids start from, and files in a failure.
        definitions: what the modules of this process defined; None if nobody looked in time.
        collected: modules that pytest imported to collect the test.
        claims: folder in which the session notes which check writes which baseline; None if none
            is written.
        registered: the judgements of the session.
    """

    nodeid: str
    cell: Cell
    settings: Settings
    ranks: RankPool
    traces: TraceCache
    verdicts: list[Verdict] = field(default_factory=list)
    root: Path = field(default_factory=Path.cwd)
    definitions: Definitions | None = None
    collected: tuple[ImportPath, ...] = ()
    claims: Path | None = None
    registered: Registered = OF_PACKAGE

    @property
    def _seen(self) -> Definitions | None:
        """Return the definitions of modules, to find monkeypatches; None with inline ranks."""
        return None if self.ranks.mode == "inline" else self.definitions

    @property
    def make_recordings(self) -> MakeRecordings:
        """Return a function that makes `Recordings`, with the session's ranks and trace cache."""
        return partial(
            Recordings, ranks=self.ranks, traces=self.traces, timeout=self.settings.timeout
        )

    def _terms(self, terms: Terms) -> Terms:
        """Return a check's terms (criteria, limits), completed by the test's settings."""
        terms = terms.bared if self.settings.bare else terms
        return terms._replace(
            jitter=self.settings.jitter,
            lines=self.settings.lines == "auto",
            root=self.root,
            registered=self.registered,
        )

    def _further(self, terms: Terms, golden: str) -> list[FurtherRule]:
        """List what else a check compares with: another revision, a baseline.

        Args:
            terms: of the test.
            golden: name of the baseline; empty for that of the test, if it has one.
        """
        makers = self.registered.functions("further", bare=terms.bare)
        return [rule for make in makers if (rule := make(self, terms, golden)) is not None]

    def _ruled(
        self, refused_ruling: Ruling | None, rule: RecordAndRule
    ) -> tuple[Ruling, dict[str, Any]]:
        """Return `refused_ruling`, or if None what `rule` returns; known errors become outcomes.

        Args:
            refused_ruling: why nothing is recorded; None if something is.
            rule: records and rules.
        """
        if refused_ruling is not None:
            return refused_ruling, {}
        started = time.perf_counter()
        with self.traces.lock:
            try:
                ruling, figures = rule()
            except Exception as error:
                wrong_ruling = failed_check.ruling_of(
                    error, require=self.settings.require, inline=self.ranks.mode == "inline"
                )
                if wrong_ruling is None:
                    raise
                ruling, figures = wrong_ruling, {}
            finally:
                self._end_check()
        return ruling, figures | {"seconds": time.perf_counter() - started}

    def _end_check(self) -> None:
        """Let go of ranks and recordings that later checks may not use."""
        self.ranks.end_check()
        self.traces.end_check()

    def _verdict(
        self, side: Side, reference: str, criterion: str, ruled: tuple[Ruling, dict[str, Any]]
    ) -> Verdict:
        """Return the verdict of a check, stored for the report; raise ParityError if not passed.

        Args:
            side: the candidate.
            reference: what it must agree with, in words.
            criterion: how equal they must be, in words.
            ruled: the ruling, and figures.
        """
        __tracebackhide__ = True
        ruling, figures = ruled
        options = self.settings.of_repeat
        return self._stored_verdict(
            Verdict(
                nodeid=self.nodeid,
                axes=axes_of(self.cell),
                candidate=str(side.layout),
                reference=reference,
                workload=str(side.workload or ""),
                criterion=criterion,
                ruling=ruling,
                command=again(self.nodeid, options=options) if options else "",
                figures=figures,
            )
        )

    def _stored_verdict(self, verdict: Verdict) -> Verdict:
        """Return a `verdict`, stored for the report; raise ParityError with it if not passed.

        Raises:
            ParityError: with any verdict but `pass`, and a `drift` that is only reported.
        """
        __tracebackhide__ = True
        reports = verdict.outcome == "drift" and self.settings.drift == "report"
        if reports:
            verdict = replace(verdict, ruling=replace(verdict.ruling, in_part=True))
        self.verdicts.append(verdict)
        if verdict.outcome != "pass" and not reports:
            raise ParityError(verdict)
        return verdict

    def _pair(
        self,
        candidate: Callable[..., Any],
        reference: Callable[..., Any],
        workload: Callable[..., Any] | None,
        cells: tuple[Cell, Cell],
        terms: Terms,
    ) -> tuple[Side, Side]:
        """Make the pair of candidate and reference of a check from the test's callables.

        Args:
            candidate: the layout or the script under test.
            reference: the one that it must agree with.
            workload: of both; scripts do without.
            cells: where each of them runs.
            terms: of the test.

        Raises:
            TypeError: for a callable that cannot be sent to the ranks, for a script that does not
                take `(cell, record)`, and for a layout without a workload.
        """
        functions = candidate, reference
        named_sides = ImportPath.of(candidate, "candidate"), ImportPath.of(reference, "reference")
        self._expect_workload(functions, workload)
        made_by = None if workload is None else ImportPath.of(workload, "workload")
        caller = Environment.now()
        both = self._cells(cells)
        declared = [
            self._declared(cell, *order, workload)
            for cell, order in zip(both, (functions, functions[::-1]), strict=True)
        ]
        judged = terms.exempt.judges_gradients
        candidate_side, reference_side = (
            replace(
                Side.of(
                    *(path, other, made_by, cell, declaration, caller),
                    way_in=way_in(function),
                    resumes=resumes(function),
                    collected=self.collected,
                ),
                variant=Variant(gradients=judged, bare=terms.bare),
            ).watched_by(self._probes_of(function, terms))
            for path, other, cell, declaration, function in zip(
                named_sides, named_sides[::-1], both, declared, functions, strict=True
            )
        )
        return candidate_side, reference_side

    def _probes_of(self, function: Callable[..., Any], terms: Terms) -> tuple[RankProbe, ...]:
        """Return the probes that judgements add to the runs of a layout or script."""
        field = "loop" if is_script(function) else "engine"
        return rank_probes(terms.registered, field, bare=terms.bare)

    def _alone(
        self,
        layout: Callable[..., Any],
        workload: Callable[..., Any] | None,
        cell: Cell,
        terms: Terms,
    ) -> Side:
        """Make the candidate of a check that has no reference.

        Raises:
            TypeError: see `_pair`.
        """
        return self._pair(layout, layout, workload, (cell, cell), terms)[0]

    def _cells(self, cells: Sequence[Cell]) -> list[Cell]:
        return [
            replace(
                cell,
                device=self.ranks.device,
                backend=self.settings.backend,
                shared_by=math.lcm(*(cell.fewest_microbatches for cell in cells)),
            )
            for cell in cells
        ]

    @staticmethod
    def _expect_workload(
        functions: Sequence[Callable[..., Any]], workload: Callable[..., Any] | None
    ) -> None:
        scripts = [function for function in functions if is_script(function)]
        for function in scripts:
            expect_signature(function)
        if workload is None and len(scripts) < len(functions):
            raise TypeError(
                expected_but_got(
                    "a workload for a layout",
                    named("workload", workload),
                    "give workload=, or declare both functions of (cell, record) with @script",
                )
            )

    def _declared(
        self,
        cell: Cell,
        layout: Callable[..., Any],
        other: Callable[..., Any],
        workload: Callable[..., Any] | None,
    ) -> Declared:
        """Return the declared needs of the check's callables, such as environment variables."""
        running = (layout, other, workload) if cell.swaps else (layout, workload)
        declared = Declared.of(*running)
        for skip in self.registered.functions("skips", bare=self.settings.bare):
            skip(declared, self.settings, self.ranks.device)
        warn_only = self.settings.deterministic == "warn"
        pure = self.settings.pure or all(map(is_pure, running))
        allowing = declared.allowing(self.settings.may_leave)
        return replace(allowing, warn_only=warn_only, pure=pure)
