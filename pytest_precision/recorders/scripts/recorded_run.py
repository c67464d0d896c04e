"""Record a loop that calls this step by step, or that runs in its context."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from torch import nn
from torch.optim import Optimizer

from pytest_precision.errors import RecordingError, expected_but_got
from pytest_precision.recorders.scripts.loop_recording import LoopRecording
from pytest_precision.recorders.scripts.loop_trace import rank_and_world_size
from pytest_precision.recorders.scripts.recorded_part import NothingRecordedError
from pytest_precision.trace.file_parts import pieces_of
from pytest_precision.trace.lin8 import LIN8
from pytest_precision.trace.manifest import Manifest
from pytest_precision.trace.remote_folder import RemoteFolder, recorded_into


class RecordedRun:
    """The train steps of a loop, from its start until the last one that is recorded.

    Args:
        model: what is trained.
        optimizer: what updates it.
        place: a folder of this machine, or an address.
        manifest: how the recording is made.
        rank_of: rank and world size; those of torch's default process group unless given.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        place: Path | RemoteFolder,
        manifest: Manifest,
        rank_of: tuple[int, int] | None,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._place = place.absolute() if isinstance(place, Path) else place
        self._manifest = manifest
        self._rank_of = rank_of
        self._out = ExitStack()
        self._following = ExitStack()
        self._recording: LoopRecording | None = None
        self._done: int | None = None

    def start(self) -> None:
        """Follow the loop from here on: call it before the first forward.

        Raises:
            RuntimeError: this recorder has started before, or a launcher has started several
            processes that have made no group yet.
            RecordingError: the folder has files of something else, or cannot be made.
        """
        if self._recording is not None:
            advice = "make another Recorder, with another folder"
            raise RuntimeError(expected_but_got("one start of a Recorder", "a second one", advice))
        rank_of = self._rank_of or rank_and_world_size()
        _expect_free(self._place, *rank_of)
        out = self._out.enter_context(recorded_into(self._place))
        recording = LoopRecording(out, self._manifest, LIN8, rank_of=rank_of, seeded=False)
        recording.loop.tell(self._model)
        self._following.enter_context(recording.followed())
        self._recording = recording

    def step(self) -> int:
        """End a train step; after the last one, complete the recording and follow no more.

        Returns:
            the number of train steps that are recorded. Later calls return the same.

        Raises:
            RuntimeError: the recorder has not started.
            NotWrittenError: a part of the recording cannot be written.
        """
        recording = self._started_loop_recording()
        if self._done is not None:
            return self._done
        recording.loop.ends.finish()
        if recording.loop.schedule.operation is None:
            self.stop()
        return recording.loop.schedule.done

    def stop(self) -> int:
        """Complete the recording with the steps made so far; return their number.

        Raises:
            RuntimeError: the recorder has not started.
            NothingRecordedError: the optimizer has made no step.
            NotWrittenError: a part of the recording cannot be written.
        """
        recording = self._started_loop_recording()
        if self._done is None:
            self._done = recording.loop.schedule.done
            with self._out, recording.trace:
                self._following.close()
                self._done = self._finished(recording)
        return self._done

    def _finished(self, recording: LoopRecording) -> int:
        stepped = any(other is self._optimizer for other in recording.loop.reader.optimizers)
        if not recording.loop.schedule.done or not stepped:
            raise NothingRecordedError(
                expected_but_got(
                    f"steps of the {type(self._optimizer).__name__} that the Recorder was given",
                    f"{recording.loop.schedule.done} train steps, none of them its own",
                    "start it before the first forward, in the process that trains",
                )
            )
        return recording.finish()

    def _started_loop_recording(self) -> LoopRecording:
        if self._recording is None:
            advice = "call recorder.start() before the first forward, or write `with recorder:`"
            raise RuntimeError(expected_but_got("a Recorder that has started", "none", advice))
        return self._recording

    def leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """End the context in which the loop ran; return whether its error was the end of it."""
        if self._done is not None:
            return False
        # It ends a loop that begins a step after the last one.
        ended = error is not None and self._following.pop_all().__exit__(kind, error, traceback)
        if error is not None and not ended:
            self._started_loop_recording().trace.__exit__(kind, error, traceback)
            self._out.__exit__(kind, error, traceback)
            return False
        self.stop()
        return bool(ended)


def _expect_free(place: Path | RemoteFolder, rank: int, world_size: int) -> None:
    """Make a folder unless it exists, and raise if another recording is in it, or at the address.

    Other ranks of this one may have begun there.

    Raises:
        RecordingError: there is one, or the folder cannot be made, or the address not be used.
    """
    expected = "a new or empty folder"
    try:
        taken = sorted(_names_in(place))
    except OSError as error:
        raise RecordingError(expected_but_got(expected, f"{place} ({error.strerror})")) from error
    if taken and (world_size == 1 or f"rank{rank}.bin" in pieces_of(taken)):
        got = f"{place}, which has {taken[0]}"
        raise RecordingError(expected_but_got(expected, got, "name another for each recording"))


def _names_in(place: Path | RemoteFolder) -> list[str]:
    """Return the names of the files in a folder, which is made unless it exists, or an address."""
    if not isinstance(place, Path):
        return place.names()
    place.mkdir(parents=True, exist_ok=True)
    return [path.name for path in place.iterdir()]
