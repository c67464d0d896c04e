"""Run: what a trace is recorded from, as plain data that travels to the ranks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_precision.cell import Cell
from pytest_precision.ranks.travel import ImportPath
from pytest_precision.trace.moment import Window
from pytest_precision.variables import Variables, plain


@dataclass(frozen=True)
class Run:
    """One layout of one workload in one cell; equal runs have equal traces.

    Attributes:
        layout: that is run.
        other: the other side's, where the cell's sequence has a `swap`.
        workload: of both sides.
        cell: where it runs.
        environment: variables that its ranks need before torch starts: those of the cell and those
            of the layout, which beat them.
    """

    layout: ImportPath
    other: ImportPath | None
    workload: ImportPath
    cell: Cell
    environment: Variables = ()

    @classmethod
    def of(
        cls,
        layout: ImportPath,
        other: ImportPath,
        workload: ImportPath,
        cell: Cell,
        environment: Variables = (),
    ) -> Run:
        """A run that names the other side only where its sequence has a use for it."""
        swapped = other if "swap" in cell.operations else None
        merged = {**dict(cell.environment), **dict(environment)}
        return cls(layout, swapped, workload, cell, plain(merged))

    def record(self, folder: str, window: Window | None) -> int:
        """The job of each rank: write its part of the trace into `folder`.

        Returns:
            the number of observations that it holds.
        """
        # Only ranks need torch for this; the controller sends the job without it.
        from pytest_precision.trace.record import record

        layout = self.layout.resolve()
        other = layout if self.other is None else self.other.resolve()
        return record(layout, other, self.workload.resolve(), self.cell, Path(folder), window)
