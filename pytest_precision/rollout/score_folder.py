"""Write what sides show as they score into a folder, which `compare` takes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from pytest_precision._progress import advance
from pytest_precision.engine.engine import STEP_PHASES
from pytest_precision.engine.observation import Observation
from pytest_precision.errors import RecordingError
from pytest_precision.matrix.cell import Cell
from pytest_precision.probes.lost_updates.measured import UpdateMeter
from pytest_precision.recorders.run_environment import environment_of
from pytest_precision.trace.data_log import write_data
from pytest_precision.trace.header import Header
from pytest_precision.trace.lin8 import LIN8
from pytest_precision.trace.manifest import Manifest
from pytest_precision.trace.moment import END, INIT, Moment
from pytest_precision.trace.writer import TraceWriter


class ScoreRecorder:
    """Writes what sides show into a folder, one step a call.

    Args:
        writer: of the trace; None on a rank that only takes part in what all ranks compute.
    """

    def __init__(self, writer: TraceWriter | None) -> None:
        self._writer = writer
        self.calls = 0
        self._write(INIT, [])

    def add(self, scores: Sequence[Observation], weights: Sequence[Observation]) -> None:
        """Write what one call has shown."""
        self.calls += 1
        shown: dict[str, Sequence[Observation]] = dict.fromkeys(STEP_PHASES, ())
        shown |= {STEP_PHASES[0]: scores, STEP_PHASES[-1]: weights}
        for phase, observations in shown.items():
            moment = Moment(self.calls - 1, "train", self.calls, phase)
            self._write(moment, observations)
        advance(self.calls, None, 0 if self._writer is None else self._writer.nbytes)

    def end(self) -> None:
        """Write the moment after the last step, at which nothing is shown."""
        self._write(Moment(self.calls - 1, "train", self.calls, END), [])

    def _write(self, moment: Moment, observations: Sequence[Observation]) -> None:
        if self._writer is not None:
            self._writer.add(moment, observations, digests=moment.phase == STEP_PHASES[-1])


@contextmanager
def calls_recorded(
    folder: Path, script: Path, arguments: Sequence[str], key: str, absent: str
) -> Iterator[ScoreRecorder]:
    """Record the calls of the block; of several ranks, the first one records.

    Args:
        folder: new or empty.
        script: that is run.
        arguments: of the script.
        key: in the header's environment, by which `compare` knows the recording.
        absent: what is said where there is no call, after "expected".

    Raises:
        RecordingError: there was no call.
        FileExistsError: the folder has a recording.
    """
    if dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK") or 0):
        yield ScoreRecorder(None)
        return
    folder.mkdir(parents=True, exist_ok=True)
    with TraceWriter(folder, 0, digest_name=LIN8) as writer:
        recorder = ScoreRecorder(writer)
        yield recorder
        if not recorder.calls:
            raise RecordingError(f"expected {absent}")
        recorder.end()
        Manifest.now(script, arguments, recorder.calls, ()).write(folder, 1)
        write_data(folder, 0)
        UpdateMeter().write(folder, 0)
        writer.finish(Header(1, {}, environment_of(Cell()) | {key: str(recorder.calls)}))
        Manifest.seal(folder, 0, 1)
