"""One side of a check, as plain data that is sent to the ranks, which record its run."""

from __future__ import annotations

from collections.abc import Callable
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
from pytest_precision.recorders.rank_probes import RankProbe, naming_probes
from pytest_precision.recorders.run_modes import delayed, layout_recorder, script_recorder
from pytest_precision.recorders.scripts.script import is_script
from pytest_precision.recorders.variant import USUAL, Variant
from pytest_precision.trace.moment import Window

if TYPE_CHECKING:
    from pytest_precision.trace.rank_log import RankLog


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
        variant: how its runs differ from the usual one.
        then: the commit or installation whose code runs, in words; empty for this one.
        probes: what judgements record beside its runs.
    """

    layout: ImportPath
    other: ImportPath | None
    workload: ImportPath | None
    cell: Cell
    way_in: WayIn = LAYOUT
    resumes: bool = False
    needs: Needs = field(default_factory=Needs)
    variant: Variant = USUAL
    then: str = ""
    probes: tuple[RankProbe, ...] = ()

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
        layout_workload = workload if way_in == LAYOUT else None
        return cls(layout, swapped, layout_workload, cell, way_in, resumes, needs)

    def varied(self, variant: Variant) -> Side:
        """Return this side with runs that differ from the usual one by a variant, too."""
        return replace(self, variant=variant.over(self.variant))

    def watched_by(self, probes: tuple[RankProbe, ...]) -> Side:
        """Return this side with the probes that judgements add to its runs.

        Its ranks import the code of other plugins as they do that of the layout.
        """
        theirs = tuple(probe.path for probe in probes if probe.path.is_of_users_module)
        if not theirs or self.needs.launched:
            return replace(self, probes=probes)
        code = (*(self.needs.code or (self.layout,)), *theirs)
        return replace(self, probes=probes, needs=replace(self.needs, code=code))

    @property
    def probes_of_package(self) -> tuple[RankProbe, ...]:
        """Return the probes of this package, which another commit's code has without any plugin."""
        return tuple(probe for probe in self.probes if not probe.path.is_of_users_module)

    def computes_as(self, other_side: Side) -> bool:
        """Return whether this run has the same set-up and environment variables as another.

        What else they need of ranks, and what they may leave there, makes no difference.
        """
        return (
            self._has_variables_of(other_side)
            and replace(self, needs=other_side.needs) == other_side
        )

    def judges_as(self, other_side: Side) -> bool:
        """Return whether a gradient check of one run also holds for the other where bits are equal.

        That is so of the same workload in the same cell, for a step that shows the same bits. Ranks
        of another commit judge by their own code.
        """
        same = (self.workload, self.cell) == (other_side.workload, other_side.cell)
        return same and self._has_variables_of(other_side) and not self.then and not other_side.then

    def _has_variables_of(self, other_side: Side) -> bool:
        return self.needs.environment == other_side.needs.environment

    def needs_of(self, segment: Segment) -> Needs:
        """Return the needs of the ranks that record one part of the run, such as new processes."""
        return replace(self.needs, fresh=self.needs.fresh or segment.in_new_processes)

    def record(
        self,
        folder: str,
        window: Window | None,
        segment: Segment | None = None,
        reference_log: RankLog | None = None,
    ) -> int:
        """Record one part of the run into `folder` on this rank, and count the tensors.

        Args:
            folder: an existing one, the same for all ranks.
            window: the train steps whose values are kept; None is the whole run.
            segment: the operations that are run; the first ones unless given.
            reference_log: what was found out of the other side, see `GradientOracle`.

        Returns:
            the number of observations that it holds.
        """
        if self.then:
            self._skip_unless_there()
        segment = segment or self.cell.segments[0]
        mode = self.variant.mode
        with axes_read(), naming_probes(), delayed(self.variant) as pause:
            if self.workload is None:
                script, place = self.layout.resolve(), Path(folder)
                record = script_recorder(mode)
                return record(script, self.cell, place, window, segment, self.variant, self.probes)
            # Only ranks need torch for this; the controller sends the job without it.
            from pytest_precision.recorders.layout_job import LayoutJob

            layout = self.layout.resolve()
            job = LayoutJob(
                layout,
                layout if self.other is None else self.other.resolve(),
                self.workload.resolve(),
                self.cell,
                Path(folder),
                segment,
                window,
                self.variant,
                reference_log,
                pause,
                self.probes,
            )
            return layout_recorder(mode)(job)

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
