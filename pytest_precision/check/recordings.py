"""Recordings: the traces of both sides, as digests of all or as values of some steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_precision.check.side import Side
from pytest_precision.trace.cache import TraceCache
from pytest_precision.trace.moment import Window

if TYPE_CHECKING:
    from pytest_precision.trace.store import Trace

Record = Callable[[Side, "Window | None", Path], None]


class Recordings:
    """Records both runs when they are asked for; what the candidate left goes with this object.

    Args:
        candidate: the run under test, recorded anew each time.
        reference: the other, recorded once for all checks that name it.
        record: has a run record the values of a window, or digests, into a folder.
        cache: of the session.

    Attributes:
        recording: `candidate` or `reference`, whichever was recorded last.
    """

    def __init__(self, candidate: Side, reference: Side, record: Record, cache: TraceCache) -> None:
        self.candidate, self.reference = candidate, reference
        self.recording = ""
        self._record, self._cache = record, cache
        self._folders: list[Path] = []

    def traces(self, window: Window | None) -> dict[str, Trace]:
        """The traces of both sides by name: values of the steps in `window`, or digests of all."""
        # Only here, so that a session that compares nothing does not import torch.
        from pytest_precision.trace.store import Trace

        self.recording = "reference"
        theirs = self._cache.keep(
            (self.reference, window), lambda folder: self._record(self.reference, window, folder)
        )
        self.recording = "candidate"
        ours = self._cache.record(lambda folder: self._record(self.candidate, window, folder))
        self._folders.append(ours)
        return {
            "candidate": Trace(ours, self.candidate.cell.world_size),
            "reference": Trace(theirs, self.reference.cell.world_size),
        }

    def close(self) -> None:
        """Remove what the candidate recorded."""
        for folder in self._folders:
            self._cache.drop(folder)
