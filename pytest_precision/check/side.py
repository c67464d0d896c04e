"""One side of a check, as plain data that is sent to the ranks, which record its run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_precision.matrix.axis_reads import axes_read
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.declared import Declared, declares_pure
from pytest_precision.matrix.sequence import Segment
from pytest_precision.matrix.variables import plain_variables
from pytest_precision.matrix.ways_in import COMMAND, LAYOUT, WayIn
from pytest_precision.ranks.code.import_path import ImportPath
from pytest_precision.ranks.needs import Needs, code_of
from pytest_precision.ranks.state.environment import Environment
from pytest_precision.recorders.scripts.script import is_script
from pytest_precision.trace.moment import Wanted, Window

if TYPE_CHECKING:
    from pytest_precision.trace.gradient_log import GradientLog


@dataclass(frozen=True)
class Side:
    """The candidate or the reference: a layout or script, and the axis values with which it runs.

    Equal sides give equal recordings.

    Attributes:
        layout: the layout that is run.
        other: the other side's layout, where the cell's sequence has a `swap`.
        workload: the workload of both sides; a script does without.
        cell: the cell in which it runs.
        way_in: whether the layout is one, or a script, or a command.
        resumes: whether the script says how it is resumed.
        needs: what its ranks need; variables of the layout override the cell's, which override the
            caller's.
        delays: number of the delays of its ranks, see `recorders.perturb.delays`; 0 for none.
        ends_only: whether only what a train step leaves is looked at.
        mutant: name of the mutant in its engine, see `recorders.perturb.mutants`; empty for none.
        noise: number of the run that rounds at random, see `recorders.perturb.rounding_noise`; 0
            for none.
        start: number of another start, see `Perturbation`; 0 for the usual one.
        logged: which tensor operations are logged, in place of a trace; None for a trace.
        beside_exact: whether the first train step is recorded beside the same step in fp64, in
            place of a trace.
        gradients: whether losses and gradients are computed once more, by the workload itself.
        updates: whether weight updates are measured and judged.
        bare: whether nothing is recorded by which it is judged alone.
        then: the commit or installation whose code runs, in words; empty for this one.
    """

    layout: ImportPath
    other: ImportPath | None
    workload: ImportPath | None
    cell: Cell
    way_in: WayIn = LAYOUT
    resumes: bool = False
    needs: Needs = field(default_factory=Needs)
    delays: int = 0
    ends_only: bool = False
    mutant: str = ""
    noise: int = 0
    start: int = 0
    logged: Wanted | None = None
    beside_exact: bool = False
    gradients: bool = True
    updates: bool = True
    bare: bool = False
    then: str = ""

    @classmethod
    def of(
        cls,
        layout: ImportPath,
        other: ImportPath,
        workload: ImportPath | None,
        cell: Cell,
        declared: Declared | None = None,
        caller: Environment | None = None,
        *,
        way_in: WayIn = LAYOUT,
        resumes: bool = False,
        collected: tuple[ImportPath, ...] = (),
    ) -> Side:
        """Make a candidate or reference from import paths and the axis values (cell) to run with.

        The other side's layout is a part of it only if the sequence has a `swap`.

        Args:
            layout: the layout that is run.
            other: the other side's layout.
            workload: the workload of both sides.
            cell: the cell in which it runs.
            declared: what the layouts and the workload declare.
            caller: environment of both sides; the current one unless given.
            way_in: see the attribute.
            resumes: whether the script says how it is resumed.
            collected: modules that pytest imported to collect the test.
        """
        declared = declared or Declared()
        is_command = way_in == COMMAND
        if is_command:  # its process unpickles the cell, and must import nothing of the user's
            cell = replace(cell, extra=tuple((name, str(value)) for name, value in cell.extra))
        swapped = other if cell.swaps else None
        variables = plain_variables({**dict(cell.environment), **dict(declared.environment)})
        code = () if is_command else code_of(layout, swapped, workload)
        needs = Needs(
            (caller or Environment.now()).declaring(variables),
            code,
            declared.fresh_ranks,
            declared.may_leave,
            declared.warn_only,
            declared.pure,
            launched=is_command,
            collected=collected if code else (),
        )
        own = workload if way_in == LAYOUT else None
        return cls(layout, swapped, own, cell, way_in, resumes, needs)

    def computes_as(self, other: Side) -> bool:
        """Return whether this run has the same set-up and environment variables as another.

        What else they need of ranks, and what they may leave there, makes no difference.
        """
        return self._has_variables_of(other) and replace(self, needs=other.needs) == other

    def judges_as(self, other: Side) -> bool:
        """Return whether a gradient check of one run also holds for the other where bits are equal.

        That is so of the same workload in the same cell, for a step that shows the same bits. Ranks
        of another commit judge by their own code.
        """
        same = (self.workload, self.cell) == (other.workload, other.cell)
        return same and self._has_variables_of(other) and not self.then and not other.then

    def _has_variables_of(self, other: Side) -> bool:
        return self.needs.environment == other.needs.environment

    def needs_of(self, segment: Segment) -> Needs:
        """Return what the ranks that record one part of the run need, such as new processes."""
        return replace(self.needs, fresh=self.needs.fresh or segment.in_new_processes)

    def record(
        self,
        folder: str,
        window: Window | None,
        segment: Segment | None = None,
        known: GradientLog | None = None,
    ) -> int:
        """Record one part of the run into `folder` on this rank, and count the tensors.

        Args:
            folder: an existing one, the same for all ranks.
            window: the train steps whose values are kept; None is the whole run.
            segment: the operations that are run; the first ones unless given.
            known: what was found out of the gradients of the other side, see `GradientOracle`.

        Returns:
            the number of observations that it holds.
        """
        if self.then:
            self._skip_unless_there()
        segment = segment or self.cell.segments[0]
        with axes_read(), self._delayed() as pause:
            if self.workload is None:
                return self._record_script(Path(folder), window, segment)
            # Only ranks need torch for this; the controller sends the job without it.
            from pytest_precision.recorders.layout_job import LayoutJob, Perturbation

            layout = self.layout.resolve()
            job = LayoutJob(
                layout,
                layout if self.other is None else self.other.resolve(),
                self.workload.resolve(),
                self.cell,
                Path(folder),
                segment,
                window,
                Perturbation(pause, self.mutant, self.noise, self.ends_only, self.start),
                self.gradients,
                known,
                self.updates,
                self.bare,
            )
            if self.logged is not None:
                from pytest_precision.recorders.logged_run import log_layout

                return log_layout(job, self.logged)
            if self.beside_exact:
                from pytest_precision.recorders.first_step import record_first_step

                return record_first_step(job)
            from pytest_precision.recorders.engine_recorder import record_engine

            return record_engine(job)

    def _delayed(self) -> AbstractContextManager[Callable[[], None] | None]:
        if not self.delays:
            return nullcontext()
        from pytest_precision.recorders.perturb.delays import delays

        return delays(self.delays)

    def _record_script(self, folder: Path, window: Window | None, segment: Segment) -> int:
        script = self.layout.resolve()
        if self.logged is None:
            from pytest_precision.recorders.scripts.script_recorder import record_script

            return record_script(script, self.cell, folder, window, segment, bare=self.bare)
        from pytest_precision.recorders.scripts.logged_script import log_script

        return log_script(script, self.cell, folder, window, segment, self.logged)

    def _skip_unless_there(self) -> None:
        """Skip the test if the commit whose code this rank runs lacks the layout or workload."""
        paths = (self.layout, self.other, self.workload)
        lacking = [path.lacking() for path in paths if path is not None]
        if any(lacking):
            import pytest

            pytest.skip(f"{next(filter(None, lacking))} is not there in {self.then}")


def is_pure(function: Callable[..., Any] | None) -> bool:
    """Return whether a layout, workload or script depends on its arguments and its cell alone.

    This package's own do, but for the one that runs a script file of the user's.
    """
    if function is None or declares_pure(function):
        return True
    return not is_script(function) and not ImportPath.of(function).is_users_own
