"""The trace and logs of one side of a comparison, read from disk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_precision.matrix.axis_reads import note
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.ways_in import LAYOUT, WayIn
from pytest_precision.trace.moment import Window
from pytest_precision.trace.rank_log import LogT, RankLog
from pytest_precision.trace.reader import Trace
from pytest_precision.trace.segment_folders import recorded_segments

if TYPE_CHECKING:
    from pytest_precision.trace.manifest import Manifest


@dataclass(frozen=True)
class Recording:
    """The trace of the candidate or of the reference, with the logs that lie beside it.

    Attributes:
        name: `candidate` or `reference`.
        cell: where it ran.
        trace: digests or values of everything observed.
        manifest: how it was made, if it is one that outlives its session.
        way_in: what its author can change.
        bare: whether nothing was recorded by which it is judged alone.
        endings: of a run that not all ranks have finished, what is known of their ends, the
            earliest first; it has their whole steps alone.
    """

    name: str
    cell: Cell
    trace: Trace
    manifest: Manifest | None = None
    way_in: WayIn = LAYOUT
    bare: bool = False
    endings: tuple[str, ...] = ()

    def until(self, step: int) -> Recording:
        """Return the recording of the train steps up to `step`."""
        cell = self.cell.replace(sequence=f"train{step}")
        return replace(self, cell=cell, trace=self.trace.until(step))

    @classmethod
    def read(
        cls,
        name: str,
        cell: Cell,
        folder: Path,
        window: Window | None,
        way_in: WayIn = LAYOUT,
        *,
        bare: bool = False,
    ) -> Recording:
        """Read the trace that the ranks of one cell of the test matrix wrote into a folder."""
        trace = Trace(folder, *(segment.world_size for segment in recorded_segments(cell, window)))
        note(trace.header.read)  # the ranks' cells were copies, and the trace may be a kept one
        return cls(name, cell, trace, way_in=way_in, bare=bare)

    def log(self, kind: type[LogT]) -> LogT:
        """Return a log of the whole run, such as `DataLog`; it is read when first asked for.

        One that a bare run does not have is empty.
        """
        log = self._logs.get(kind)
        if not isinstance(log, kind):
            trace = self.trace
            log = (
                kind.absent() or kind.merged(())
                if self.bare and not kind.in_bare
                else kind.read(trace.folder, *trace.world_sizes, files=trace.files)
            )
            self._logs[kind] = log
        return log

    @cached_property
    def _logs(self) -> dict[type[RankLog], RankLog]:
        return {}
