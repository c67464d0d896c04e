"""parity.check: one cell from two recorded runs to a verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_precision.check import preconditions
from pytest_precision.check.recordings import MakeRecordings, Recordings
from pytest_precision.check.side import Side
from pytest_precision.check.sides_of_test import SidesOfTest
from pytest_precision.check.terms import Terms
from pytest_precision.errors import (
    ParityError,
    expect_count,
    expect_type,
    is_bad_input,
)
from pytest_precision.matrix.cell import Cell, axes_of
from pytest_precision.matrix.contract import Contract
from pytest_precision.options import Settings
from pytest_precision.parity.compare.bounds import Unchecked
from pytest_precision.parity.compare.criterion import Criterion
from pytest_precision.parity.verdict import Ruling, Verdict, again
from pytest_precision.ranks.pool import RankPool
from pytest_precision.ranks.state.definitions import Definitions
from pytest_precision.trace.cache import TraceCache

if TYPE_CHECKING:
    from pytest_precision.check.moved import Then

__tracebackhide__ = is_bad_input


@dataclass(repr=False)
class Parity:
    """The fixture of that name, bound to one test.

    Attributes:
        nodeid: pytest's id of the test.
        cell: the cell that the test runs in.
        settings: settings of the session, with those of the marker.
        ranks: the session's rank groups.
        traces: the session's recorded runs.
        verdicts: verdicts of all checks of this test so far.
        root: the folder that node ids start from, and files in a failure.
        definitions: what the modules of this process defined; None if nobody looked in time.
        then: the commit or installation that each side is compared with; None for none.
    """

    nodeid: str
    cell: Cell
    settings: Settings
    ranks: RankPool
    traces: TraceCache
    verdicts: list[Verdict] = field(default_factory=list)
    root: Path = field(default_factory=Path.cwd)
    definitions: Definitions | None = None
    then: Then | None = None

    def __repr__(self) -> str:
        return f"<parity of {self.nodeid}>"

    def check(
        self,
        candidate: Callable[..., Any],
        reference: Callable[..., Any],
        *,
        workload: Callable[..., Any] | None = None,
        criterion: Criterion | Mapping[str, Criterion] | None = None,
        reference_cell: Cell | None = None,
        max_lost_updates: float | None = None,
        contract: Contract | None = None,
        oracle: Unchecked | Mapping[str, Unchecked] | None = None,
    ) -> Verdict:
        """Train both layouts through the cell's sequence and compare everything observed.

        Args:
            candidate: the layout under test: a module-level callable `(workload, cell) -> Engine`,
                or `functools.partial` of one; or a `script`.
            reference: the layout that it must agree with.
            workload: makes the workload of both: a module-level class or function, or
                `functools.partial` of one; scripts do without.
            criterion: how equal two tensors must be: one for all, or a mapping from kinds; bitwise
                unless given.
            reference_cell: where the reference runs, if not in the test's cell:
                `cell.replace(world_size=1)`.
            max_lost_updates: largest share, from 0 to 1, of any one tensor's updates over the whole
                run that the candidate may lose. An update is lost if exact arithmetic would move
                the effective weight, but rounding leaves every bit of it; each is weighted by its
                size. Without this limit, lost updates are only reported.
            contract: what the candidate must have stored and done in addition to what its cell
                says: the dtype of parameters, fused accumulation, quantized parameters.
            oracle: `unchecked(reason=...)` judges no side by itself; unless given, a side fails
                whose update is not that of the workload's `optimizer_rule`, whose losses or
                gradients are not those of its model and loss, or that contradicts itself. A
                mapping from kinds, or from `kind:pattern of names`, leaves these alone.

        Returns:
            The verdict, if it is `pass`, or a `drift` that is only reported.

        Raises:
            ParityError: with any other verdict.
            TypeError: for a callable that cannot be sent to the ranks, for a script that does not
                take `(cell, record)`, for a layout without a workload, for a limit that is not a
                number, and for a `reference_cell`, `contract` or `oracle` of another type.
            ValueError: for a limit that is not from 0 to 1, and for a kind of `oracle` that nothing
                judges.
        """
        __tracebackhide__ = True
        started = time.perf_counter()
        if reference_cell is not None:
            expect_type(
                "reference_cell", reference_cell, Cell, "a Cell", "write cell.replace(world_size=1)"
            )
        terms = self._terms(Terms.of(criterion, max_lost_updates, contract, oracle))
        cells = self.cell, reference_cell or self.cell
        candidate_side, reference_side = (
            replace(side, gradients=terms.exempt.judges_gradients)
            for side in self._sides.pair(candidate, reference, workload, cells)
        )
        ruling, figures = self._ruled(candidate_side, reference_side, terms)
        figures["seconds"] = time.perf_counter() - started
        return self._kept(
            Verdict(
                nodeid=self.nodeid,
                axes=axes_of(self.cell),
                candidate=str(candidate_side.layout),
                reference=str(reference_side.layout),
                workload=str(candidate_side.workload or reference_side.workload or ""),
                criterion=str(terms.criteria),
                ruling=ruling,
                command="" if self.then is None else again(self.nodeid, options=self.then.options),
                **figures,
            )
        )

    def repeat(
        self,
        layout: Callable[..., Any],
        *,
        workload: Callable[..., Any] | None = None,
        runs: int = 3,
        threads: int | None = None,
        contract: Contract | None = None,
        oracle: Unchecked | Mapping[str, Unchecked] | None = None,
    ) -> Verdict:
        """Run a layout several times and expect each rank to have the same bytes in all runs.

        The second run is on the ranks of the first one, the third on new ranks with another seed of
        Python's hashes, and so on in turn. On several GPUs there is one more, in which each rank
        has another device. The first run is also judged by itself, as each side of `check` is.

        Args:
            layout: a layout or a `script`, see `check`.
            workload: see `check`.
            runs: how many runs there are, from 2.
            threads: number of threads of one more run; unless given, each has one thread.
            contract: see `check`.
            oracle: see `check`.

        Returns:
            The verdict, if it is `pass`.

        Raises:
            ParityError: with any other verdict.
            TypeError: see `check`; and for numbers that are no `int`.
            ValueError: for fewer than 2 runs, and for no thread.
        """
        __tracebackhide__ = True
        # Only here, so that a session that compares nothing does not import torch.
        from pytest_precision.check.repeat import devices_of, further_runs, repeated

        started = time.perf_counter()
        expect_count("runs", runs, 2)
        if threads is not None:
            expect_count("threads", threads, 1)
        terms = self._terms(Terms.of(None, None, contract, oracle))
        side = self._sides.alone(layout, workload, self.cell)
        side = replace(side, gradients=terms.exempt.judges_gradients)
        devices = devices_of(side, self.settings.ranks_per_device)
        further = [*further_runs(side, runs, threads, self.ranks.mode, devices)]
        ruling, figures = self._recorded(
            preconditions.before_alone(side, self._seen), partial(repeated, further, side, terms)
        )
        figures["seconds"] = time.perf_counter() - started
        return self._kept(
            Verdict(
                nodeid=self.nodeid,
                axes=axes_of(self.cell),
                candidate=str(side.layout),
                reference=str(side.layout),
                workload=str(side.workload or ""),
                criterion=f"the same bytes in {len(further) + 1} runs",
                ruling=ruling,
                **figures,
            )
        )

    def compare(
        self,
        candidate: str | Path,
        reference: str | Path,
        *,
        criterion: Criterion | Mapping[str, Criterion] | None = None,
    ) -> Verdict:
        """Compare two recordings that `python -m pytest_precision record` has made, anywhere.

        Args:
            candidate: the folder of the recording under test.
            reference: the folder of the one that it must agree with.
            criterion: see `check`; other criteria than `bitwise()` need the values of all steps.

        Returns:
            The verdict, if it is `pass`.

        Raises:
            ParityError: with any other verdict.
            RecordingError: a folder holds no whole recording, or the two cannot be compared.
        """
        __tracebackhide__ = True
        # Only here, so that a session that compares nothing does not import torch.
        from pytest_precision.check.compare import compare_recordings

        terms = Terms.of(criterion)._replace(root=self.root)
        paths, axes = (Path(candidate), Path(reference)), axes_of(self.cell)
        return self._kept(compare_recordings(*paths, terms, self.nodeid, axes))

    @property
    def _sides(self) -> SidesOfTest:
        return SidesOfTest(self.settings, self.ranks.device)

    def _terms(self, asked: Terms) -> Terms:
        """Return the terms that a test wrote, with those of its settings."""
        lines = self.settings.lines == "auto"
        return asked._replace(jitter=self.settings.jitter, lines=lines, root=self.root)

    def _kept(self, verdict: Verdict) -> Verdict:
        __tracebackhide__ = True
        reports = verdict.outcome == "drift" and self.settings.drift == "report"
        if reports:
            verdict = replace(verdict, ruling=replace(verdict.ruling, in_part=True))
        self.verdicts.append(verdict)
        if verdict.outcome != "pass" and not reports:
            raise ParityError(verdict)
        return verdict

    def _ruled(
        self, candidate: Side, reference: Side, terms: Terms
    ) -> tuple[Ruling, dict[str, Any]]:
        """Return the ruling on two sides, and what was counted and measured."""
        # Only here, so that a session that compares nothing does not import torch.
        from pytest_precision.check.case import Case
        from pytest_precision.check.gates import GATES, ruled
        from pytest_precision.check.moved import since
        from pytest_precision.check.mutation import mutants, noticed

        def rule(record: MakeRecordings) -> tuple[Ruling, dict[str, Any]]:
            with closing(record(candidate, reference)) as recordings:
                case = Case.opened(recordings, terms)
                ruling, share = ruled(case, GATES), self.settings.mutate
                figures = case.figures() | {"timing": recordings.timing}
                if self.then is not None:
                    sides = candidate, reference
                    ruling, told = since(ruling, case, sides, self.then, record)
                    figures |= told
                figures |= ruling.figures
                if ruling.outcome == "pass" and share is not None:
                    figures["mutants"] = mutants(case)
                    ruling = noticed(figures["mutants"], share) or ruling
                return ruling, figures

        return self._recorded(preconditions.before(candidate, reference, self._seen), rule)

    @property
    def _seen(self) -> Definitions | None:
        """What the modules of this process defined, where ranks import them anew."""
        return None if self.ranks.mode == "inline" else self.definitions

    def _recorded(
        self,
        refused: Ruling | None,
        rule: Callable[[MakeRecordings], tuple[Ruling, dict[str, Any]]],
    ) -> tuple[Ruling, dict[str, Any]]:
        """Return what `rule` makes of what it records, unless it is refused before or after."""
        if refused is not None:
            return refused, {}
        record = partial(
            Recordings, ranks=self.ranks, traces=self.traces, timeout=self.settings.timeout
        )
        with self.traces.lock:
            try:
                return rule(record)
            except Exception as error:
                require, inline = self.settings.require, self.ranks.mode == "inline"
                refused = preconditions.after(error, require=require, inline=inline)
                if refused is None:
                    raise
                return refused, {}
