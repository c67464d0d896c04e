"""Record a training loop from within: in an actor, a notebook, a framework's own launcher."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from torch import nn
from torch.optim import Optimizer

from pytest_precision.errors import RecordingError, expected_but_got, named
from pytest_precision.recorders.scripts.loop_recording import LoopRecording
from pytest_precision.recorders.scripts.loop_trace import rank_and_world_size
from pytest_precision.recorders.scripts.recorded_part import NothingRecordedError
from pytest_precision.trace.lin8 import LIN8
from pytest_precision.trace.manifest import Manifest


class Recorder:
    """Records the train steps of a loop that neither a script nor a launcher runs.

    An actor of Ray or Monarch trains one step a call, and ends each with `step`:

        self.recorder = Recorder(model, optimizer, out="a", rank=rank, world_size=4)
        self.recorder.start()       # before the first forward
        ...
        self.recorder.step()        # behind the update, the scheduler, the clearing of gradients

    Where the loop is in one place, it is a context, and ends the loop after the last step:

        with Recorder(model, optimizer, out="a"):
            train()

    The recording is that of `python -m pytest_precision record`, for `compare`, and for `join`
    where nodes share no disk. It is whole once all ranks have made `steps` train steps, or ended
    their contexts. It follows torch's calls in the whole process: only one runs at a time.

    Args:
        model: what is trained.
        optimizer: what updates it.
        out: a new or empty folder, the same for all ranks.
        rank, world_size: of this process in training; those of torch's default process group
            unless given.
        steps: train steps to record.
        values: steps whose values are kept, not only digests; 0 is the start.
        only: patterns of the names of the tensors that are recorded; none for all.
        every: tensors are recorded in step 1, in each such step after it, and in the last.

    Raises:
        TypeError: the model is no module, or the optimizer none of torch's.
        ValueError: a number cannot be; only one of `rank` and `world_size` is given.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        out: str | Path,
        rank: int | None = None,
        world_size: int | None = None,
        steps: int = 10,
        values: Collection[int] = (),
        only: Sequence[str] = (),
        every: int = 1,
    ) -> None:
        _expect_trained(model, optimizer)
        for name, number in (("steps", steps), ("every", every)):
            if type(number) is not int or number < 1:
                raise ValueError(expected_but_got("a number from 1 on", named(name, number)))
        if isinstance(only, str):
            raise TypeError(expected_but_got("a sequence of patterns", named("only", only)))
        beyond = [step for step in values if not 0 <= step <= steps]
        if beyond:
            expected = f"values of steps from 0 to the last one, {steps},"
            raise ValueError(expected_but_got(expected, beyond[0]))
        self._rank_of = _rank_of(rank, world_size)
        self._model = model
        self._optimizer = optimizer
        self._folder = Path(out).absolute()
        caller = Path(sys._getframe(1).f_code.co_filename)
        self._manifest = Manifest.now(caller, [], steps, values, only=only, every=every)
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
        _expect_free(self._folder, *rank_of)
        recording = LoopRecording(self._folder, self._manifest, LIN8, rank_of=rank_of)
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
        recording = self._started()
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
        recording = self._started()
        if self._done is None:
            self._done = recording.loop.schedule.done
            with recording.trace:
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

    def _started(self) -> LoopRecording:
        if self._recording is None:
            advice = "call recorder.start() before the first forward, or write `with recorder:`"
            raise RuntimeError(expected_but_got("a Recorder that has started", "none", advice))
        return self._recording

    def __enter__(self) -> Recorder:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if self._done is not None:
            return False
        # It ends a loop that begins a step after the last one.
        ended = error is not None and self._following.pop_all().__exit__(kind, error, traceback)
        if error is not None and not ended:
            self._started().trace.__exit__(kind, error, traceback)
            return False
        self.stop()
        return bool(ended)


def _expect_trained(model: object, optimizer: object) -> None:
    """Raise unless these are a module of torch and an optimizer of torch.

    Raises:
        TypeError: one is not.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(expected_but_got("a torch.nn.Module", named("model", model)))
    if not isinstance(optimizer, Optimizer):
        got = named("optimizer", optimizer)
        advice = "give the one whose step() the loop calls, not what wraps it"
        raise TypeError(expected_but_got("a torch.optim.Optimizer", got, advice))


def _rank_of(rank: int | None, world_size: int | None) -> tuple[int, int] | None:
    """Return both numbers, or None where neither is given.

    Raises:
        ValueError: one is missing, or the rank is none of as many.
    """
    if rank is None and world_size is None:
        return None
    got = f"rank={rank!r}, world_size={world_size!r}"
    if type(rank) is not int or type(world_size) is not int or not 0 <= rank < world_size:
        raise ValueError(expected_but_got("a rank from 0 to before world_size", got))
    return rank, world_size


def _expect_free(folder: Path, rank: int, world_size: int) -> None:
    """Make the folder unless it exists, and raise if another recording is in it.

    Other ranks of this one may have begun there.

    Raises:
        RecordingError: there is one, or the folder cannot be made.
    """
    expected = "a new or empty folder"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise RecordingError(expected_but_got(expected, f"{folder} ({error.strerror})")) from error
    if taken and (world_size == 1 or f"rank{rank}.bin" in taken):
        got = f"{folder}, which has {taken[0]}"
        raise RecordingError(expected_but_got(expected, got, "name another for each recording"))
