"""Recording: all that one side left behind, as the gates of a check read it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_precision.errors import RecordingError, expected_but_got, is_bad_input
from pytest_precision.matrix.axis_reads import note
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.ways_in import LAYOUT, RECORDING, WayIn
from pytest_precision.trace.data import DataLog
from pytest_precision.trace.gradient_log import GradientLog
from pytest_precision.trace.manifest import Manifest, damaged
from pytest_precision.trace.moment import Window
from pytest_precision.trace.oracle_log import OracleLog
from pytest_precision.trace.sealed import SealedFiles, files_of
from pytest_precision.trace.segment_folders import holders, log_path, recorded_segments
from pytest_precision.trace.sound import expect_data, expect_index, expect_updates
from pytest_precision.trace.store import Header, Trace
from pytest_precision.trace.update_log import UpdateLog

__tracebackhide__ = is_bad_input

BROKEN_RULES = "rules"
"""Name of the log in which each rank of a script writes pairs of a kind and words."""

SHOWN = 8
"""Ranks that are named where several have not finished."""


@dataclass(frozen=True)
class Recording:
    """One side's trace, with the logs beside it.

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
        """Read the files that all ranks of `cell` wrote into `folder`."""
        trace = Trace(folder, *(segment.world_size for segment in recorded_segments(cell, window)))
        note(trace.header.read)  # the ranks' cells were copies, and the trace may be a kept one
        return cls(name, cell, trace, way_in=way_in)

    @classmethod
    def of_folder(cls, name: str, folder: Path) -> Recording:
        """Read a recording that `record` made.

        Raises:
            RecordingError: the folder holds none that is whole.
        """
        manifest = Manifest.read(folder)
        expect_complete(folder, manifest)
        try:
            return cls._sound(name, folder, manifest)
        except Exception as error:
            raise damaged(folder, error) from error

    @classmethod
    def _sound(cls, name: str, folder: Path, manifest: Manifest) -> Recording:
        """Check all files of a recording, and read them."""
        files = SealedFiles(folder, manifest.files)
        ranks = range(manifest.world_size)
        for rank in ranks:
            index, held, data, updates = (folder / name for name in files_of(rank))
            fields = Header.__dataclass_fields__
            expect_index(files.data(index), fields, len(ranks), files.bytes(held).numel())
            expect_data(files.data(data))
            expect_updates(files.data(updates))
        trace = Trace(folder, manifest.world_size, files=files)
        cell = Cell(sequence=f"train{trace.moments[-1].step}", world_size=manifest.world_size)
        return cls(name, cell, trace, manifest, RECORDING)

    @cached_property
    def updates(self) -> UpdateLog:
        """Return the lost updates of each tensor; only a recording of the whole run has them."""
        return UpdateLog.read(*self._place, files=self.trace.files)

    @cached_property
    def oracle(self) -> OracleLog:
        """Return the judgement of updates; only a recording of the whole run has it."""
        return OracleLog.read(*self._place, files=self.trace.files)

    @cached_property
    def gradients(self) -> GradientLog:
        """Return the judgement of losses and gradients; only a whole run has it."""
        return GradientLog.read(*self._place, files=self.trace.files)

    @cached_property
    def broken_rules(self) -> dict[str, str]:
        """Return the rules of every loop that a script has broken; empty for an engine.

        Returns:
            words to the kind of what is wrong, which a test may leave unchecked.
        """
        trace, files = self.trace, self.trace.files
        places = holders(trace.folder, trace.world_sizes)
        paths = [log_path(place, BROKEN_RULES, rank) for _, place, rank in places]
        found = [files.data(path) for path in paths if files.has(path)]
        return {words: kind for broken in found for kind, words in broken}

    @cached_property
    def data(self) -> DataLog:
        """Return digests of the microbatches that each rank was given."""
        return DataLog.read(*self._place, files=self.trace.files)

    @property
    def _place(self) -> tuple[Any, ...]:
        return self.trace.folder, *self.trace.world_sizes


def expect_complete(folder: Path, manifest: Manifest) -> None:
    """Refuse a recording that a rank has not completed.

    Raises:
        RecordingError: with the ranks.
    """
    ranks = range(manifest.world_size)
    there = {entry.name for entry in folder.iterdir()}
    missing = [str(rank) for rank in ranks if f"rank{rank}.json" not in there]
    if not missing and manifest.files:
        return
    some = f"{', '.join(missing[:SHOWN])}{' and others' * (len(missing) > SHOWN)}"
    raise RecordingError(
        expected_but_got(
            "a whole recording",
            f"{folder}, which "
            + (f"rank {some} of {manifest.world_size} has" if missing else "its ranks have")
            + " not finished",
            "its script still runs, failed, was killed or called os._exit; record it again into "
            "another folder",
        )
    )
