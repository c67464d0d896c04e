"""The trace and logs of one side of a comparison, read from disk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_precision.matrix.axis_reads import note
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.ways_in import LAYOUT, WayIn
from pytest_precision.trace.data_log import DataLog
from pytest_precision.trace.gradient_log import GradientLog
from pytest_precision.trace.moment import Window
from pytest_precision.trace.oracle_log import OracleLog
from pytest_precision.trace.reader import Trace
from pytest_precision.trace.segment_folders import holders, log_path, recorded_segments
from pytest_precision.trace.update_log import UpdateLog

if TYPE_CHECKING:
    from pytest_precision.trace.manifest import Manifest

BROKEN_RULES = "rules"
"""Name of the log in which each rank of a script writes pairs of a kind and words."""


@dataclass(frozen=True)
class Recording:
    """The trace of the candidate or of the reference, with the logs that lie beside it.

    Attributes:
        name: `candidate` or `reference`.
        cell: where it ran.
        trace: digests or values of everything observed.
        manifest: how it was made, if it is one that outlives its session.
        way_in: what its author can change.
    """

    name: str
    cell: Cell
    trace: Trace
    manifest: Manifest | None = None
    way_in: WayIn = LAYOUT

    @classmethod
    def read(
        cls,
        name: str,
        cell: Cell,
        folder: Path,
        window: Window | None,
        way_in: WayIn = LAYOUT,
    ) -> Recording:
        """Read the trace that the ranks of one cell of the test matrix wrote into a folder."""
        trace = Trace(folder, *(segment.world_size for segment in recorded_segments(cell, window)))
        note(trace.header.read)  # the ranks' cells were copies, and the trace may be a kept one
        return cls(name, cell, trace, way_in=way_in)

    @cached_property
    def updates(self) -> UpdateLog:
        """Return how many updates rounding lost in a whole run, tensor by tensor."""
        return UpdateLog.read(*self._place, files=self.trace.files)

    @cached_property
    def oracle(self) -> OracleLog:
        """Return how the weight updates of a whole run compare with ones computed in fp64."""
        return OracleLog.read(*self._place, files=self.trace.files)

    @cached_property
    def gradients(self) -> GradientLog:
        """Return how losses and gradients of a whole run compare with recomputed ones."""
        return GradientLog.read(*self._place, files=self.trace.files)

    @cached_property
    def broken_rules(self) -> dict[str, str]:
        """Return each rule that a script's training loop broke, with the kind of the wrong tensor.

        Returns:
            words to the kind of what is wrong, which a test may leave unchecked.
        """
        trace, files = self.trace, self.trace.files
        places = holders(trace.folder, trace.world_sizes)
        paths = [log_path(place, BROKEN_RULES, rank) for _, place, rank in places]
        logs = [files.data(path) for path in paths if files.has(path)]
        return {words: kind for broken in logs for kind, words in broken}

    @cached_property
    def data(self) -> DataLog:
        """Return the digests of the microbatches that the workload gave to each rank."""
        return DataLog.read(*self._place, files=self.trace.files)

    @property
    def _place(self) -> tuple[Any, ...]:
        return self.trace.folder, *self.trace.world_sizes
