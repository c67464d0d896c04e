"""Tape: where the observations of a loop are kept while a step runs, and then written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

import torch.distributed as dist

from pytest_precision.engine.capture import Capture
from pytest_precision.engine.observation import Observation, cloned
from pytest_precision.loops.sight import Sight
from pytest_precision.matrix.cell import Cell
from pytest_precision.trace.digests import digest_threads, digested
from pytest_precision.trace.moment import Moment, Window
from pytest_precision.trace.record import SMALL_RUN, elements
from pytest_precision.trace.store import Header
from pytest_precision.trace.writer import TraceWriter


class Tape(ExitStack):
    """One rank's part of the trace of a loop.

    Args:
        folder: an existing one, the same for all ranks.
        cell: whose sequence the loop is to make.
        window: the train steps whose values are written; None for the whole run.

    Attributes:
        first: what the loop starts with; there is none of these before `start`.
        step: what is gone when a step is over.
        writer: of the trace.
    """

    first: Capture
    step: Capture
    writer: TraceWriter

    def __init__(self, folder: Path, cell: Cell, window: Window | None) -> None:
        super().__init__()
        self._folder, self._cell, self._window = folder, cell, window

    def start(self, sight: Sight) -> None:
        """Choose between digests and values, once the first model is known; a collective."""
        size = elements(sight.names.parameters()) * len(self._cell.operations)
        digests = self._window is None and size > SMALL_RUN
        sight.gathers_shards = digests
        self.first, self.step = (
            Capture(snapshot=digested if digests else cloned) for _ in range(2)
        )
        threads = digest_threads(self._cell.world_size)
        self.writer = self.enter_context(
            TraceWriter(self._folder, dist.get_rank(), digests=digests, threads=threads)
        )

    def writes(self, step: int) -> bool:
        """Return whether a step is written; 0 is the state before any."""
        return self._window is None or step >= self._window.first

    def started(self) -> Iterator[Observation]:
        """Yield what the loop started with."""
        return chain.from_iterable(map(self.first.kept, ("numbers", "state", "model")))

    def write(self, moment: Moment, seen: Iterator[Observation]) -> None:
        """Write what was observed at one moment."""
        self.writer.add(moment, seen)

    def end(self, header: Header) -> int:
        """Finish the trace; return the number of observations in it."""
        self.writer.close(header)
        return self.writer.observations
