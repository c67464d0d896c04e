"""Recordings: both sides of a check, recorded as digests of all steps or as values of some."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_precision.check.side import Side
from pytest_precision.errors import DevicesBusyError, PrecisionLeakWarning, RankError, SideFailed
from pytest_precision.ranks.state.sources import Sources, import_path
from pytest_precision.trace.cache import TraceCache
from pytest_precision.trace.moment import Window
from pytest_precision.trace.wanted import Wanted

if TYPE_CHECKING:
    from pytest_precision.trace.recording import Recording

Record = Callable[[Side, "Window | None", Path], Sources]


class Recordings:
    """Records both sides whenever they are asked for, and removes the candidate's at the end.

    Args:
        candidate: the side under test, recorded anew each time.
        reference: the other side, recorded once for all checks that name it while what it has read
            is the same.
        record: has a side's ranks record the values of a window, or digests, into a folder, and
            returns what they have read.
        cache: the session's cache of traces.

    Attributes:
        timing: seconds in which each side was recorded.
    """

    def __init__(self, candidate: Side, reference: Side, record: Record, cache: TraceCache) -> None:
        self.candidate, self.reference = candidate, reference
        self._record, self._cache = record, cache
        self._folders: list[Path] = []
        self._references: dict[tuple[Side, Window | None], Path] = {}
        self.timing = {"candidate": 0.0, "reference": 0.0}

    def both(self, window: Window | None) -> tuple[Recording, Recording]:
        """Record the candidate and the reference.

        Args:
            window: the steps whose values are kept; digests of all steps without it.

        Raises:
            SideFailed: if a rank failed, or the traces cannot be written.
            RanksSkipped, WorldSizeError: if the layout, or this machine, cannot run here.
        """
        folder = self._kept(self.reference, window)
        return self.ours(window), self._read(folder, window)

    def noisy(self, window: Window | None, number: int) -> Recording:
        """Record the reference with its operations rounded at random, unless that was done.

        Args:
            window: as of `both`.
            number: of the run, from 1.

        Raises:
            SideFailed, RanksSkipped, WorldSizeError: as of `both`.
        """
        return self._read(self._kept(replace(self.reference, noise=number), window), window)

    def _kept(self, side: Side, window: Window | None) -> Path:
        """Return the folder of a reference, which one check asks the cache for once."""
        if (side, window) not in self._references:
            self._references[side, window] = self._recorded(
                "reference", lambda: self._found(side, window)
            )
        return self._references[side, window]

    def _found(self, side: Side, window: Window | None) -> Path:
        key = side, window, import_path()
        kept = self._cache.keep(key, lambda into: self._record(side, window, into))
        if not kept.lasts:
            self._folders.append(kept.folder)
        return kept.folder

    def _read(self, folder: Path, window: Window | None) -> Recording:
        # Only here, so that a session that compares nothing does not import torch.
        from pytest_precision.trace.recording import Recording

        side = self.reference
        return Recording.read("reference", side.cell, folder, window, side.way_in)

    def ours(self, window: Window | None, delays: int = 0, mutant: str = "") -> Recording:
        """Record the candidate alone.

        Args:
            window: as of `both`.
            delays: number of the delays that its ranks have; 0 for none.
            mutant: name of the mutant in its engine; empty for none.

        Raises:
            SideFailed, RanksSkipped, WorldSizeError: as of `both`.
        """
        from pytest_precision.trace.recording import Recording

        side = replace(self.candidate, delays=delays, mutant=mutant)
        folder = self._recorded(
            "candidate",
            lambda: self._cache.record(lambda into: self._record(side, window, into))[0],
        )
        self._folders.append(folder)
        return Recording.read("candidate", side.cell, folder, window, side.way_in)

    def logged(self, wanted: Wanted) -> tuple[Path, Path]:
        """Log operations of the candidate and of the reference; return their folders.

        Raises:
            SideFailed, RanksSkipped, WorldSizeError: as of `both`.
        """
        window = Window(wanted.step, wanted.step)
        reference = self._kept(replace(self.reference, logged=wanted), window)
        candidate = replace(self.candidate, logged=wanted)
        folder = self._recorded(
            "candidate",
            lambda: self._cache.record(lambda into: self._record(candidate, window, into))[0],
        )
        self._folders.append(folder)
        return folder, reference

    def _recorded(self, side: str, record: Callable[[], Path]) -> Path:
        started = time.perf_counter()
        try:
            return record()
        except (RankError, DevicesBusyError, PrecisionLeakWarning, OSError) as error:
            raise SideFailed(side, error) from error
        finally:
            self.timing[side] += time.perf_counter() - started

    def close(self) -> None:
        """Remove what the candidate recorded, and a reference that cannot be kept."""
        for folder in self._folders:
            self._cache.drop(folder)
