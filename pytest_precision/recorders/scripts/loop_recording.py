"""One rank's recording of a training loop, which outlives the process: followed, finished, sealed.

The command `record` and the object `Recorder` both make it.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager

from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.ways_in import RECORDING
from pytest_precision.recorders.loop_job import LoopJob
from pytest_precision.recorders.rank_probes import made_probes, rank_probes
from pytest_precision.recorders.scripts.loop_header import header_of
from pytest_precision.recorders.scripts.loop_reader import LoopReader
from pytest_precision.recorders.scripts.loop_schedule import LoopSchedule
from pytest_precision.recorders.scripts.loop_trace import LAUNCHED, LoopTrace, written
from pytest_precision.recorders.scripts.recorded_part import RecordedPart
from pytest_precision.recorders.scripts.script_recorder import finished, followed
from pytest_precision.recorders.scripts.steps import Steps
from pytest_precision.registered import OF_PACKAGE
from pytest_precision.trace.header import Header
from pytest_precision.trace.manifest import Manifest
from pytest_precision.trace.moment import LogRequest
from pytest_precision.trace.remote_folder import OutFolder
from pytest_precision.trace.writer import FirstShown


class LoopRecording:
    """One rank's recording of a training loop.

    Args:
        out: with an existing folder without a recording, the same for all ranks that see this
            disk.
        manifest: how the recording is made; its steps, names and intervals are those recorded.
        digest_name: name of the digests.
        lines: ranks over which the other side spreads its tensors, if all tensor operations are
            logged; 0 for no log.
        rank_of: this process's rank and the number of ranks; those of torch's default process
            group unless given.
        seeded: whether torch was seeded before the loop.

    Attributes:
        trace: of this rank; the caller closes it.
        loop: what follows the loop.
    """

    def __init__(
        self,
        out: OutFolder,
        manifest: Manifest,
        digest_name: str,
        *,
        lines: int = 0,
        rank_of: tuple[int, int] | None = None,
        seeded: bool = True,
    ) -> None:
        self._out = out
        self._folder = out.path
        self._seeded = seeded
        part = RecordedPart(manifest.only, manifest.every, manifest.steps)
        self.trace = LoopTrace(
            out.path, manifest.steps, None, manifest, digest_name=digest_name, rank_of=rank_of
        )
        # Whether a comparison will have a tolerance, nobody knows yet.
        pieces = max(lines, *(int(os.environ.get(name) or 1) for name in LAUNCHED))
        log_request = LogRequest(0, manifest.steps, pieces, sketches=True) if lines else None
        self._probes = [*made_probes(rank_probes(OF_PACKAGE, "loop"), LoopJob(logged=log_request))]
        schedule = LoopSchedule(("train",) * manifest.steps)
        self.loop = Steps(LoopReader(part), self.trace, schedule, self._probes)
        self.loop.ends.settled = self._settle

    def followed(self) -> AbstractContextManager[None]:
        """Return a context that follows the loop, and ends it after its last step."""
        return followed(self.loop)

    def _settle(self) -> None:
        self.trace.settle(self._described)
        self._out.settled()

    def _described(self) -> tuple[Header, FirstShown]:
        cell = Cell(world_size=self.trace.world_size)
        return (
            header_of(self.trace, [self.loop], cell, RECORDING, seeded=self._seeded),
            self.loop.reader.starts(),
        )

    def finish(self) -> int:
        """Write the end of the recording, and seal its files; return its number of train steps.

        Raises:
            NotWrittenError: a part of the recording cannot be written.
        """
        trace = self.trace
        self.loop.ends.write_end()
        cell = Cell(world_size=trace.world_size)
        with written():
            finished(
                *(trace, [self.loop], cell, self._folder, self._probes, RECORDING),
                seeded=self._seeded,
            )
        trace.close()
        with written():
            Manifest.seal(self._folder, trace.rank, trace.world_size, trace.origin)
        return self.loop.schedule.done
