"""Recording: all that one side left behind, as the gates of a check read it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pytest_precision.errors import RecordingError, expected_but_got
from pytest_precision.matrix.cell import Cell
from pytest_precision.trace.data import DataLog
from pytest_precision.trace.moment import Window
from pytest_precision.trace.oracle.log import OracleLog
from pytest_precision.trace.origin import Origin, damaged
from pytest_precision.trace.store import Trace
from pytest_precision.trace.stretches import recorded
from pytest_precision.trace.updates import UpdateLog


@dataclass(frozen=True)
class Recording:
    """One side's trace and the logs that lie next to it.

    Attributes:
        name: `candidate` or `reference`.
        cell: where it ran.
        trace: digests or values of everything observed.
        origin: how it was made, if it is one that outlives its session.
    """

    name: str
    cell: Cell
    trace: Trace
    origin: Origin | None = None

    @classmethod
    def read(cls, name: str, cell: Cell, folder: Path, window: Window | None) -> Recording:
        """Read what all ranks of `cell` wrote into `folder`."""
        trace = Trace(folder, *(stretch.world_size for stretch in recorded(cell, window)))
        return cls(name, cell, trace)

    @classmethod
    def of_folder(cls, name: str, folder: Path) -> Recording:
        """Read a recording that outlives its session.

        Raises:
            RecordingError: the folder holds none that is whole.
        """
        origin = Origin.read(folder)
        expect_complete(folder, origin)
        try:
            trace = Trace(folder, origin.world_size)
            trace.expect_bytes()
        except (OSError, ValueError, TypeError, KeyError, IndexError) as error:
            raise damaged(folder, error) from error
        steps = trace.moments[-1].step
        return cls(
            name, Cell(sequence=f"train{steps}", world_size=origin.world_size), trace, origin
        )

    @cached_property
    def updates(self) -> UpdateLog:
        """Return how many updates each tensor lost; only a recording of the whole run has this."""
        return UpdateLog.read(self.trace.folder, *self.trace.world_sizes)

    @cached_property
    def oracle(self) -> OracleLog:
        """Return how its updates follow the workload's rule; only a whole run has this."""
        return OracleLog.read(self.trace.folder, *self.trace.world_sizes)

    @cached_property
    def data(self) -> DataLog:
        """Return digests of the microbatches that each rank was given."""
        return DataLog.read(self.trace.folder, *self.trace.world_sizes)


def expect_complete(folder: Path, origin: Origin) -> None:
    """Refuse a recording that some rank has not finished.

    Raises:
        RecordingError: with the ranks.
    """
    ranks = range(origin.world_size)
    missing = [str(rank) for rank in ranks if not (folder / f"rank{rank}.json").is_file()]
    if missing:
        raise RecordingError(
            expected_but_got(
                "a whole recording",
                f"{folder}, which rank {', '.join(missing)} of {origin.world_size} has not "
                "finished",
                "its script still runs, failed or was killed; record it again into another folder",
            )
        )
