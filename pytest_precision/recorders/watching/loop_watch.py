"""Watch a training loop from its first step until it is stopped, and keep no recording of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import ClassVar

from torch import nn
from torch.optim import Optimizer

from pytest_precision.engine.groups import updated_tensors
from pytest_precision.errors import expected_but_got
from pytest_precision.recorders import torch_hooks
from pytest_precision.recorders.scripts.loop_reader import LoopReader
from pytest_precision.recorders.torch_hooks import LoopEvents
from pytest_precision.recorders.watching.mismatch import Mismatch, OnMismatch, answer
from pytest_precision.recorders.watching.rank_link import own_place
from pytest_precision.recorders.watching.replay import Replay
from pytest_precision.recorders.watching.replica_watch import ReplicaWatch
from pytest_precision.recorders.watching.root_calls import RootCalls


class LoopModels(LoopEvents):
    """Tells a reader of the models that a loop calls.

    Args:
        reader: names their tensors.
    """

    def __init__(self, reader: LoopReader) -> None:
        self._reader = reader

    def forward(self, module: nn.Module) -> None:
        """Meet a model, unless it is met."""
        self._reader.names.meet(module)


class LoopWatch:
    """Watches a training loop.

    Args:
        every: updates after which replicas are compared over ranks; 0 for never.
        on_mismatch: how the run answers.
        replay: whether forward and backward are run once more.
        model: what is trained; found when it is called unless given.
        optimizer: what updates it; known from its first step on unless given.

    Attributes:
        is_running: whether this process is being watched.
    """

    is_running: ClassVar[bool] = False

    def __init__(
        self,
        every: int,
        on_mismatch: OnMismatch,
        *,
        replay: bool = False,
        model: nn.Module | None = None,
        optimizer: Optimizer | None = None,
    ) -> None:
        self._reader = LoopReader()
        self._on_mismatch = on_mismatch
        self._replicas = ReplicaWatch(self._reader, every, on_mismatch)
        self._replays = [Replay(self._reader, self._report)] if replay else []
        self._calls = RootCalls([self._replicas, *self._replays])
        self._listeners = [LoopModels(self._reader), self._calls, *self._replays, self._replicas]
        if model is not None:
            self._reader.names.add(model)
            self._calls.watch(model)
        if optimizer is not None:
            self._reader.names.settle(updated_tensors(optimizer))
            self._reader.take_in(optimizer)
        self._following = ExitStack()
        self._started = False

    def _report(self, kind: str, name: str) -> None:
        """Answer to a tensor that has other bits when forward and backward run again."""
        device = updated_tensors(self._reader.optimizers[0])[0].device
        mismatch = Mismatch(self.steps + 1, kind, name, (own_place(device),), repeated=True)
        answer(self._on_mismatch, [mismatch], speaks=True)

    @property
    def steps(self) -> int:
        """Return the number of train steps that were watched."""
        return self._replicas.steps

    def start(self) -> None:
        """Watch the loop from here on.

        Raises:
            RuntimeError: it is watched already.
        """
        if self._started:
            raise RuntimeError(expected_but_got("one start of a watch", "a second one"))
        self._started = True
        self._following.enter_context(self.followed())

    def step(self) -> int:
        """Return the number of train steps that were watched.

        Raises:
            RuntimeError: the watch has not started.
        """
        if not self._started:
            advice = "call recorder.start() before the first forward, or write `with recorder:`"
            raise RuntimeError(expected_but_got("a Recorder that has started", "none", advice))
        return self.steps

    def stop(self) -> int:
        """Watch no more; return the number of train steps that were watched.

        Raises:
            RuntimeError: the watch has not started.
        """
        steps = self.step()
        self._following.close()
        return steps

    def leave(self, *_: object) -> bool:
        """End the context in which the loop ran; its error is not the end of a watch."""
        self._following.close()
        return False

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Watch the loop inside the context."""
        LoopWatch.is_running = True
        try:
            with torch_hooks.opened(*self._listeners):
                yield
        finally:
            LoopWatch.is_running = False
            self._calls.close()
            for replay in self._replays:
                replay.close()
            self._replicas.close()
