"""Recording: all that one side left behind, as the gates of a check read it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pytest_precision.matrix.cell import Cell
from pytest_precision.trace.data import DataLog
from pytest_precision.trace.store import Trace
from pytest_precision.trace.updates import UpdateLog


@dataclass(frozen=True)
class Recording:
    """One side's trace and the logs that lie next to it.

    Attributes:
        name: `candidate` or `reference`.
        cell: where it ran.
        trace: digests or values of everything observed.
    """

    name: str
    cell: Cell
    trace: Trace

    @classmethod
    def read(cls, name: str, cell: Cell, folder: Path) -> Recording:
        """Read what all ranks of `cell` wrote into `folder`."""
        return cls(name, cell, Trace(folder, cell.world_size))

    @cached_property
    def updates(self) -> UpdateLog:
        """Return how many updates each tensor lost; only a recording of the whole run has this."""
        return UpdateLog.read(self.trace.folder, self.cell.world_size)

    @cached_property
    def data(self) -> DataLog:
        """Return digests of the microbatches that each rank was given."""
        return DataLog.read(self.trace.folder, self.cell.world_size)
