"""Record a training loop from within: in an actor, a notebook, a framework's own launcher."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from torch import nn
from torch.optim import Optimizer

from pytest_precision.errors import expected_but_got, named
from pytest_precision.recorders.scripts.current import record
from pytest_precision.recorders.scripts.recorded_run import RecordedRun
from pytest_precision.recorders.watching.loop_watch import LoopWatch
from pytest_precision.recorders.watching.mismatch import OnMismatch, expect_answer
from pytest_precision.trace.manifest import Manifest
from pytest_precision.trace.remote_folder import folder_named

RECORDED_STEPS = 10
"""Train steps that are recorded unless another number is given."""


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
        out: a new or empty folder, the same for all ranks, or an address of fsspec.
        rank, world_size: of this process in training; those of torch's default process group
            unless given.
        steps: train steps to record.
        values: steps whose values are kept, not only digests; 0 is the start.
        only: patterns of the names of the tensors that are recorded; none for all.
        every: tensors are recorded in step 1, in each such step after it, and in the last.
        watch: updates after which what ranks hold in common is compared, while the loop runs and
            as long as it runs; nothing is recorded then, and `out` and the others are not given.
        replay: whether forward and backward of `model`, as the loop calls it, are run once more
            before each update, and have to give the same bits; nothing is recorded then.
        on_mismatch: how a watched run answers to what deviates: it ends with a `WatchError`
            ("raise"), says it on standard error and goes on ("report"), or calls a function with
            it, on every rank.

    Raises:
        TypeError: the model is no module, or the optimizer none of torch's.
        ValueError: a number cannot be; only one of `rank` and `world_size` is given; what is
            recorded is given with `watch` or `replay`, or no `out` without them.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        out: str | Path | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        steps: int = RECORDED_STEPS,
        values: Collection[int] = (),
        only: Sequence[str] = (),
        every: int = 1,
        watch: int | None = None,
        replay: bool = False,
        on_mismatch: OnMismatch = "raise",
    ) -> None:
        _expect_trained(model, optimizer)
        for name, number in (
            ("steps", steps),
            ("every", every),
            ("watch", 1 if watch is None else watch),
        ):
            if type(number) is not int or number < 1:
                raise ValueError(expected_but_got("a number from 1 on", named(name, number)))
        if isinstance(only, str):
            raise TypeError(expected_but_got("a sequence of patterns", named("only", only)))
        beyond = [step for step in values if not 0 <= step <= steps]
        if beyond:
            expected = f"values of steps from 0 to the last one, {steps},"
            raise ValueError(expected_but_got(expected, beyond[0]))
        rank_of = _rank_of(rank, world_size)
        self._run: RecordedRun | LoopWatch
        if watch is not None or replay:
            expect_answer(on_mismatch)
            if (rank_of, out, steps, values, only, every) != (
                None,
                None,
                RECORDED_STEPS,
                (),
                (),
                1,
            ):
                got = "what says what is recorded, too"
                raise ValueError(expected_but_got("watch=, replay= and on_mismatch= alone", got))
            self._run = LoopWatch(
                watch or 0, on_mismatch, replay=replay, model=model, optimizer=optimizer
            )
        elif out is None:
            raise ValueError(expected_but_got("out=, watch= or replay=", "none of them"))
        else:
            caller = Path(sys._getframe(1).f_code.co_filename)
            manifest = Manifest.now(caller, [], steps, values, only=only, every=every)
            manifest = replace(manifest, command=())
            self._run = RecordedRun(model, optimizer, folder_named(out), manifest, rank_of)

    def start(self) -> None:
        """Follow the loop from here on: call it before the first forward.

        Raises:
            RuntimeError: this recorder has started before, another one runs in this process, or a
            launcher has started several processes that have made no group yet.
            RecordingError: the folder has files of something else, or cannot be made or used.
        """
        if record.is_running or LoopWatch.is_running:
            expected = "one Recorder at a time in a process, or the command `record`,"
            advice = "stop() the first one; each would record what the other does, too"
            raise RuntimeError(expected_but_got(expected, "a second one", advice))
        self._run.start()

    def step(self) -> int:
        """End a train step; after the last one, complete the recording and follow no more.

        Returns:
            the number of train steps that are recorded, or watched. Later calls return the same.

        Raises:
            RuntimeError: the recorder has not started.
            NotWrittenError: a part of the recording cannot be written.
        """
        return self._run.step()

    def stop(self) -> int:
        """Complete the recording with the steps made so far; return their number.

        Raises:
            RuntimeError: the recorder has not started.
            NothingRecordedError: the optimizer has made no step.
            NotWrittenError: a part of the recording cannot be written.
        """
        return self._run.stop()

    def __enter__(self) -> Recorder:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        return self._run.leave(kind, error, traceback)


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
