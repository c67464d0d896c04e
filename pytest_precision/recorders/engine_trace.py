"""Engine trace: write what an engine shows after each phase, as digests or as values."""

from __future__ import annotations

from collections.abc import Set
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from pytest_precision.engine import groups
from pytest_precision.engine.capture import Capture
from pytest_precision.engine.engine import STEP_PHASES
from pytest_precision.engine.observation import cloned
from pytest_precision.matrix.axis_reads import so_far
from pytest_precision.recorders.collector import collector_paused
from pytest_precision.recorders.engine_run import EngineRun
from pytest_precision.recorders.layout_job import LayoutJob
from pytest_precision.recorders.probe import Probe
from pytest_precision.recorders.run_environment import environment_of
from pytest_precision.trace.digests import SMALL_RUN, digest_threads, elements
from pytest_precision.trace.header import Header
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.named_digests import digest_name_of_cell, digested
from pytest_precision.trace.writer import TraceWriter


class EngineTrace(Probe[EngineRun]):
    """Writes the engine's tensors after each phase, and the header at the end.

    Both are of the pieces as each rank holds them: digests of shards add up to that of the logical
    tensor. A run of few elements and steps is kept as values.

    Args:
        job: what is run.
        products: dtypes of the run's matrix products, which the header names.
    """

    writer: TraceWriter

    def __init__(self, job: LayoutJob, products: Set[str] = frozenset()) -> None:
        self._job = job
        self._products = products

    def opened(self, run: EngineRun, folder: Path, rank: int) -> AbstractContextManager[object]:
        """Open the trace, and choose by the size of the run what the engine's tensors become.

        Args:
            run: whose engine is built.
            folder: into which the trace is written.
            rank: this one.
        """
        self._run = run
        size = elements(run.engine.model.named_parameters()) * run.operations.count("train")
        digests = self._job.window is None and size > SMALL_RUN
        name = digest_name_of_cell(run.cell)
        run.capture = Capture(snapshot=partial(digested, name=name) if digests else cloned)
        threads = digest_threads(self._job.segment.world_size)
        self.writer = TraceWriter(folder, rank, digests=digests, threads=threads, digest_name=name)
        return self.writer

    def before(self, run: EngineRun, call: str) -> None:
        """Let the engine copy nothing in a step that is looked at only where it ends."""
        if call == "forward_backward" and self._job.variant.ends_only:
            run.capture.begin(keeps=False)

    def shown(self, run: EngineRun, moment: Moment) -> None:
        """Write the engine's tensors, if this phase and step are to be recorded."""
        if self._job.variant.ends_only and moment.phase in STEP_PHASES[:-1]:
            return
        if self._job.window is None or moment.step >= self._job.window.first:
            with collector_paused():
                self.writer.add(moment, [*run.engine.observe(moment.phase, run.capture)])

    def write(self, folder: Path, rank: int) -> None:
        """Write the header: what else decides about the bits, and what could not be shown."""
        run = self._run
        run.look_at_storage()
        self.writer.finish(
            Header(
                self._job.segment.world_size,
                dict(run.engine.unobservable),
                environment_of(run.cell) | run.backend,
                paths=tuple(sorted(run.paths)),
                violations=tuple(run.violations),
                products=tuple(sorted(self._products)),
                unshown=groups.unshown(run.engine.optimizer),
                read=so_far(),
            ),
            run.engine.starts(),
        )
