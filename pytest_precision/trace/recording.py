"""Recording: all that one side left behind, as the gates of a check read it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_precision.matrix.cell import Cell
from pytest_precision.trace.data import DataLog
from pytest_precision.trace.store import Trace
from pytest_precision.trace.updates import UpdateLog


@dataclass(frozen=True)
class Recording:
    """One side's trace and the logs that lie beside it.

    Attributes:
        name: `candidate` or `reference`.
        cell: where it ran.
        trace: digests or values of everything observed.
        updates: how many updates each tensor lost.
        data: digests of the microbatches that each rank was given.
    """

    name: str
    cell: Cell
    trace: Trace
    updates: UpdateLog
    data: DataLog

    @classmethod
    def read(cls, name: str, cell: Cell, folder: Path) -> Recording:
        """Read what all ranks of `cell` wrote into `folder`."""
        world_size = cell.world_size
        return cls(
            name,
            cell,
            Trace(folder, world_size),
            UpdateLog.read(folder, world_size),
            DataLog.read(folder, world_size),
        )
