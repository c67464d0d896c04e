"""Record the training runs of a check's candidate and reference, or reuse recorded ones."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_precision.check.side import Side
from pytest_precision.errors import (
    DevicesBusyError,
    PrecisionLeakWarning,
    RankError,
    RanksSkipped,
    SideFailed,
    expected_but_got,
)
from pytest_precision.matrix.sequence import LOADS, STEPS_OF_LOOPS
from pytest_precision.ranks.blame import require_observations
from pytest_precision.ranks.code.module_files import ModuleFile
from pytest_precision.ranks.pool import RankPool
from pytest_precision.recorders.variant import USUAL, Variant
from pytest_precision.trace.cache import TraceCache
from pytest_precision.trace.moment import INIT, LogRequest, Window
from pytest_precision.trace.segment_folders import recorded_segments

if TYPE_CHECKING:
    from pytest_precision.trace.rank_log import RankLog
    from pytest_precision.trace.recording import Recording


class Recordings:
    """Records candidate and reference on demand; removes the candidate's files at the end.

    Args:
        candidate: the side under test, recorded anew each time.
        reference: the other side, recorded once for this check, and for all later checks that name
            it if it is promised to depend on its arguments and its cell alone.
        ranks: the session's rank groups, one of which records each segment of a side.
        traces: the session's recorded runs.
        timeout: seconds that one job of the ranks may take.
        then: ranks of another commit or installation, for sides that run its code.
        names: what failures call both sides.

    Attributes:
        timing: seconds in which each side was recorded.
        output: the end of what each rank printed in the first run of each side, by side and rank; a
            side whose recording was kept has none.
    """

    def __init__(
        self,
        candidate: Side,
        reference: Side,
        ranks: RankPool,
        traces: TraceCache,
        timeout: float,
        then: RankPool | None = None,
        names: tuple[str, str] = ("candidate", "reference"),
    ) -> None:
        self.candidate, self.reference = candidate, reference
        self._ranks = ranks
        self._traces = traces
        self._timeout = timeout
        self._then = then
        self._names = dict(zip(("candidate", "reference"), names, strict=True))
        self._folders: list[Path] = []
        self._references: dict[tuple[Side, Window | None], Path] = {}
        self.timing = {"candidate": 0.0, "reference": 0.0}
        self.output: dict[str, dict[int, str]] = {}

    def both(self, window: Window | None, variant: Variant = USUAL) -> tuple[Recording, Recording]:
        """Record the candidate and the reference.

        Args:
            window: the steps whose values are kept; digests of all steps without it.
            variant: how both runs differ from the usual ones of their sides.

        Raises:
            SideFailed: if a rank failed, or the traces cannot be written.
            RanksSkipped, WorldSizeError: if the layout, or this machine, cannot run here.
        """
        reference = self._reference_folder(self.reference.varied(variant), window)
        candidate = self._candidate_folder(self.candidate.varied(variant), window)
        # Both are recorded before either is read.
        return (
            self._read("candidate", candidate, window),
            self._read("reference", reference, window),
        )

    def theirs(self, window: Window | None, variant: Variant = USUAL) -> Recording:
        """Return the reference's recording: record it now, or take it from the session's cache.

        Args:
            window: see `both`.
            variant: how this run differs from the usual one of the reference.

        Raises:
            SideFailed, RanksSkipped, WorldSizeError: see `both`.
        """
        folder = self._reference_folder(self.reference.varied(variant), window)
        return self._read("reference", folder, window)

    def ours(self, window: Window | None, variant: Variant = USUAL) -> Recording:
        """Record the candidate alone.

        Args:
            window: see `both`.
            variant: how this run differs from the usual one of the candidate.

        Raises:
            SideFailed, RanksSkipped, WorldSizeError: see `both`.
        """
        folder = self._candidate_folder(self.candidate.varied(variant), window)
        return self._read("candidate", folder, window)

    def logged(self, log_request: LogRequest) -> tuple[Path, Path]:
        """Run candidate and reference with operation logs; return the folders of the logs.

        A reference with another sequence makes the same train step in another operation of its own.

        Raises:
            SideFailed, RanksSkipped, WorldSizeError: see `both`.
        """
        window = Window(log_request.step, log_request.step)
        reference_log_request = log_request
        operations = self.reference.cell.operations
        ours = self.candidate.cell.operations
        if self.candidate.workload is None and _is_first_after_load(ours, log_request.op):
            reference_log_request = log_request._replace(whole=True)
        if operations != ours and log_request.op != INIT.op:
            trains = [op for op, operation in enumerate(operations) if operation == "train"]
            reference_log_request = reference_log_request._replace(op=trains[log_request.step - 1])
        reference = self._reference_folder(
            self.reference.varied(Variant(logged=reference_log_request)), window
        )
        return self._candidate_folder(
            self.candidate.varied(Variant(logged=log_request)), window
        ), reference

    def folders(self, window: Window, variant: Variant) -> tuple[Path, Path]:
        """Run candidate and reference, and return the folders of what these runs record.

        Args:
            window: see `both`.
            variant: how both runs differ from the usual ones of their sides.

        Raises:
            SideFailed, RanksSkipped, WorldSizeError: see `both`.
        """
        reference = self._reference_folder(self.reference.varied(variant), window)
        return self._candidate_folder(self.candidate.varied(variant), window), reference

    def close(self) -> None:
        """Delete the candidate's recordings."""
        for folder in self._folders:
            self._traces.drop(folder)

    def _reference_folder(self, side: Side, window: Window | None, name: str = "reference") -> Path:
        """Return the folder in which a run of a side is kept, recorded now or cached."""
        request = side, window
        if request not in self._references:
            with self._recording(name):
                # Another sys.path may find another module of the same name.
                key = *request, os.getcwd(), tuple(sys.path)
                folder = self._traces.find(key)
                if folder is None and not side.variant.gradients:  # one that has them serves, too
                    judged_side = replace(side, variant=replace(side.variant, gradients=True))
                    folder = self._traces.find((judged_side, *key[1:]))
                if folder is None:
                    with self._traces.new_folder() as folder:
                        modules = self._record(name, side, window, folder)
                    # Tests change the process that inline ranks run in.
                    lasts = side.needs.pure and self._ranks.mode != "inline"
                    self._traces.keep(key, folder, modules, outlasts_check=lasts)
            self._references[request] = folder
        return self._references[request]

    def _candidate_folder(self, side: Side, window: Window | None) -> Path:
        """Record the candidate into a new folder, which `close` deletes; return the folder."""
        with self._recording("candidate"), self._traces.new_folder() as folder:
            self._record("candidate", side, window, folder, self._reference_log(window))
        self._folders.append(folder)
        return folder

    def _reference_log(self, window: Window | None) -> RankLog:
        """Return the log of the reference that its candidate is told; empty if of no use to it."""
        from pytest_precision.trace.rank_log import shared_log  # which imports torch

        kind = shared_log()
        folder = self._references.get((self.reference, window))
        if folder is None or not self.candidate.judges_as(self.reference):
            return kind()
        segments = recorded_segments(self.reference.cell, window)
        return kind.read(folder, *(segment.world_size for segment in segments))

    def _record(
        self,
        name: str,
        side: Side,
        window: Window | None,
        folder: Path,
        reference_log: RankLog | None = None,
    ) -> set[ModuleFile]:
        """Record one run, each segment on a group of ranks; return the modules that these imported.

        Args:
            name: `candidate` or `reference`.
            side: which.
            window: see `both`.
            folder: where to.
            reference_log: see `Side.record`.

        Raises:
            RanksSkipped: the sequence goes on in new processes, and there is one process alone.
        """
        if self._ranks.mode == "inline" and any(
            segment.in_new_processes for segment in side.cell.segments
        ):
            raise RanksSkipped(
                expected_but_got(
                    f"ranks in new processes, which sequence={side.cell.sequence!r} needs,",
                    "--precision-ranks=inline, which has only the calling process",
                    "leave that option out",
                )
            )
        modules: set[ModuleFile] = set()
        output: dict[int, str] = {}
        ranks = self._then if side.then and self._then is not None else self._ranks
        for segment in recorded_segments(side.cell, window):
            counts = ranks.run(
                segment.world_size,
                Side.record,
                side,
                str(folder),
                window,
                segment,
                reference_log,
                timeout=self._timeout,
                needs=side.needs_of(segment),
                name=side.layout.name,
                modules=modules,
                output=output,
            )
            require_observations(counts, side.layout.name)
        self.output.setdefault(name, output)
        return modules

    def _read(self, name: str, folder: Path, window: Window | None) -> Recording:
        # Only here, so that a session that compares nothing does not import torch.
        from pytest_precision.trace.recording import Recording

        side = self.reference if name == "reference" else self.candidate
        return Recording.read(name, side.cell, folder, window, side.way_in, bare=side.variant.bare)

    @contextmanager
    def _recording(self, side: str) -> Iterator[None]:
        """Time a recording in this context; re-raise its errors, naming candidate or reference."""
        started = time.perf_counter()
        try:
            yield
        except (RankError, DevicesBusyError, PrecisionLeakWarning, OSError) as error:
            raise SideFailed(self._names[side], error) from error
        finally:
            self.timing[side] += time.perf_counter() - started


MakeRecordings = Callable[..., Recordings]
"""Makes the recordings of two sides, on the ranks and in the cache of a session."""


def _is_first_after_load(operations: Sequence[str], op: int) -> bool:
    """Return whether an operation is the first one of a script that resumes.

    Such a script is logged from its start, and what it makes there the reference made before.
    """
    loads = [place for place, name in enumerate(operations[:op]) if name in LOADS]
    return bool(loads) and STEPS_OF_LOOPS.isdisjoint(operations[loads[-1] + 1 : op])
