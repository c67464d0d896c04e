"""Engine recorder: run an engine through train, save and load operations, and record its state."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist

from pytest_precision.engine import groups
from pytest_precision.engine.capture import Capture
from pytest_precision.engine.engine import STEP_PHASES, Engine
from pytest_precision.engine.observation import cloned
from pytest_precision.errors import expect_type, expected_but_got
from pytest_precision.matrix.axis_reads import so_far
from pytest_precision.matrix.precisions import COMPUTED
from pytest_precision.matrix.sequence import OPERATIONS
from pytest_precision.recorders.gradients.gradient_oracle import GradientOracle
from pytest_precision.recorders.layout_job import NONE, LayoutJob
from pytest_precision.recorders.products import Products
from pytest_precision.recorders.run_environment import (
    FRESH_SEED,
    SEED,
    environment_of,
    with_backend,
)
from pytest_precision.recorders.update_watcher import UpdateWatcher
from pytest_precision.trace.data_log import DataWatch
from pytest_precision.trace.digests import SMALL_RUN, digest_threads, digested, elements
from pytest_precision.trace.moment import END, EVERYTHING, INIT, Moment
from pytest_precision.trace.reader import Header
from pytest_precision.trace.writer import TraceWriter


class EngineRecorder:
    """Runs a training engine through a sequence of operations (train, save, load) and records it.

    Args:
        job: what is run.
    """

    writer: TraceWriter

    def __init__(self, job: LayoutJob) -> None:
        segment = job.segment
        cell, self.backend = with_backend(job.cell)
        self.cell = cell.of_segment(segment)
        self.job = job
        self.operations = cell.operations
        self.layout = job.layout
        self.other = job.other
        if self.operations[: segment.start + 1].count("swap") % 2:
            self.layout, self.other = self.other, self.layout
        self.workload = job.own_workload()
        self.op = INIT.op
        self.operation = INIT.operation
        self.step = segment.done
        self.data = DataWatch(self.workload)
        whole = job.window in (None, EVERYTHING) and not job.perturbation.ends_only
        plain = job.perturbation == NONE
        self.watcher = (
            UpdateWatcher(self.workload, self.cell, explains=plain)
            if whole and job.updates
            else None
        )
        self.gradients = GradientOracle(
            self.workload,
            self.cell,
            whole=whole and plain,
            enabled=job.gradients,
            other_log=job.known,
        )
        self.paths: set[str] = set()
        self.violations: dict[str, None] = {}
        self.products = Products()
        self.engine = self.build(FRESH_SEED if segment.number else SEED + job.perturbation.start)
        self.engine.expect_world_sizes({segment.world_size for segment in cell.segments})
        self.look_at_storage()
        size = elements(self.engine.model.named_parameters()) * self.operations.count("train")
        self.digests = job.window is None and size > SMALL_RUN
        self.capture = Capture(
            gathers_shards=self.digests, snapshot=digested if self.digests else cloned
        )
        self.engine.start(self.capture)

    def run(self) -> None:
        """Run the sequence's operations up to the last to record; record the engine after each."""
        start, stop = self.job.segment.start, self.job.segment.stop
        if self.job.segment.number:
            self.op = start
            self.operation = self.operations[start]
            self.restore()
            start += 1
        else:
            self.observe("init")
        window = self.job.window
        last = sys.maxsize if window is None else window.last
        for self.op in range(start, stop):
            self.operation = self.operations[self.op]
            if self.step + (self.operation == "train") > last:
                return
            self.run_operation()
        if stop == len(self.operations):
            self.end()

    def run_operation(self) -> None:
        """Run the sequence's current operation, such as `train` or `save`."""
        if self.operation != "train":
            self.gradients.interrupted()
        getattr(self, OPERATIONS[self.operation].run)()

    def build(self, seed: int) -> Engine:
        """Build the engine under test, with weights initialised from a seed.

        Raises:
            TypeError: the layout returns none.
        """
        torch.manual_seed(seed)
        engine = self.layout(self.workload, self.cell)
        if not isinstance(engine, Engine):
            raise TypeError(
                expected_but_got(
                    "the layout to return an Engine",
                    f"a {type(engine).__name__}",
                    "end it with `return Engine(workload, cell, model, optimizer)`",
                )
            )
        engine.expect_even_shares()
        # A layout may draw more random numbers than another while it builds its engine.
        torch.manual_seed(seed)
        return engine

    def look_at_storage(self) -> None:
        """Record which kernels the engine ran, and its tensors that lack the required dtype."""
        self.paths |= self.engine.paths()
        self.violations |= dict.fromkeys(self.engine.violations())

    def observe(self, phase: str) -> None:
        """Write the engine's tensors to the trace, if this phase and step are to be recorded."""
        if self.job.perturbation.ends_only and phase in STEP_PHASES[:-1]:
            return
        if self.job.window is None or self.step >= self.job.window.first:
            moment = Moment(self.op, self.operation, self.step, phase)
            self.writer.add(moment, [*self.engine.observe(phase, self.capture)])

    def train(self) -> None:
        """Run one train step, and record the engine's tensors after each phase."""
        self.step += 1
        self.capture.begin(keeps=not self.job.perturbation.ends_only)
        self.job.perturbation.wait()
        with (
            self._watching(),
            self._noise("forward_backward"),
            self.gradients.around(self.engine, self.step),
        ):
            self.engine.forward_backward(self.step)
        self.engine.watch_changes()
        self.observe("forward_backward")
        for call, shown in self._calls():
            self.job.perturbation.wait()
            with self._updating(call), self._noise(call):
                getattr(self.engine, call)()
                self._expect_norm(call, shown)
            if call == "reduce_grads":
                self.gradients.reduced(self.engine, self.step)
            for phase in shown:
                self.observe(phase)

    def end(self) -> None:
        """Record the optimizer's final hyperparameters if the sequence ends with a train step."""
        if self.operation == "train":
            self.observe(END)

    def _calls(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield (method, phases): the engine methods to call after `forward_backward`, in order."""
        if self.engine.fused_step:
            self.engine.keep_rates()
            yield "optimizer_step", STEP_PHASES[1:]
        else:
            yield from ((phase, (phase,)) for phase in STEP_PHASES[1:])

    def _expect_norm(self, call: str, shown: tuple[str, ...]) -> None:
        """Raise if the engine's `grad_norm` is not a tensor after a method that clips."""
        if "clip_grads" in shown:
            advice = f"set it in {call}, a number wrapped in torch.tensor"
            expect_type("grad_norm", self.engine.grad_norm, torch.Tensor, "a tensor", advice)

    def _watching(self) -> AbstractContextManager[object]:
        """Return a context that records the dtypes of matrix products in train step 1."""
        watched = self.step == 1 and self.cell.precision in COMPUTED
        return self.products if watched else nullcontext()

    def _updating(self, call: str) -> AbstractContextManager[object]:
        """Return a context that measures and checks weight updates if the run is recorded whole."""
        if self.watcher is None:
            return nullcontext()
        return self.watcher.around(self.engine, call, self.step)

    def _noise(self, phase: str) -> AbstractContextManager[object]:
        return self.job.perturbation.rounding(self.engine, phase, self.step)

    def skip(self) -> None:
        """Run a train step made to overflow, which all ranks must skip; record its tensors."""
        # Only here, since few sequences have such a step.
        from pytest_precision.recorders.skipped_step import SkippedStep

        skipped = SkippedStep(self.engine, self.capture, self.cell)
        self.capture.begin()
        skipped.overflow(self.step + 1)
        for call, shown in self._calls():
            getattr(self.engine, call)()
            self._expect_norm(call, shown)
        skipped.expect_overflow()
        self.observe("skip")
        self.violations |= dict.fromkeys(skipped.changed_rates(self.step))

    def evaluate(self) -> None:
        """Compute the evaluation losses, then record the engine's tensors."""
        self.capture.begin()
        self.engine.evaluate()
        self.observe("evaluate")

    @property
    def _checkpoint(self) -> Path:
        return self.job.folder / "checkpoint"

    def save(self) -> None:
        """Save a checkpoint of the engine on all ranks, then record the engine's tensors."""
        self.engine.save(self._checkpoint)
        if self.watcher is not None:
            self.watcher.save(self.job.folder)
        # A rank must not load, or save over, what another has not finished.
        dist.barrier()
        self.observe("save")

    def load(self) -> None:
        """Load the last checkpoint into a newly built engine, then record the engine's tensors."""
        self.look_at_storage()
        self.engine = self.build(FRESH_SEED)
        self.engine.start(self.capture)
        self.restore()

    def restore(self) -> None:
        """Load the last checkpoint into the same engine on all ranks, then record its tensors."""
        self.engine.load(self._checkpoint)
        if self.watcher is not None:
            self.watcher.load(self.job.folder)
        dist.barrier()
        self.observe("load")

    def swap(self) -> None:
        """Build an engine of the other run's layout, and load the last checkpoint into it."""
        self.layout, self.other = self.other, self.layout
        self.load()


def record_engine(job: LayoutJob) -> int:
    """Run an engine through a sequence of operations, and write this rank's trace to disk.

    Digests are of whole logical tensors, whoever holds which shard, so that they can be compared
    between layouts; values are the pieces as each rank holds them. A run of few elements and steps
    is kept as values: gathering shards for digests would take longer. Digests of the data that the
    workload gave and, if the whole run is recorded, lost updates are written next to the trace.

    Returns:
        the number of observations that were written.
    """
    run = EngineRecorder(job)
    place = job.place()
    rank = dist.get_rank()
    threads = digest_threads(job.segment.world_size)
    with TraceWriter(place, rank, digests=run.digests, threads=threads) as run.writer:
        run.run()
        if run.watcher is not None:
            run.watcher.write(place, rank)
        run.data.write(place, rank)
        run.gradients.write(place, rank)  # asks for data again, which is nobody's training
        environment = environment_of(run.cell) | run.backend
        run.look_at_storage()
        run.writer.finish(
            Header(
                job.segment.world_size,
                dict(run.engine.unobservable),
                environment,
                paths=tuple(sorted(run.paths)),
                violations=tuple(run.violations),
                products=tuple(sorted(run.products.dtypes)),
                unshown=groups.unshown(run.engine.optimizer),
                read=so_far(),
            ),
            run.engine.starts(),
        )
        return run.writer.observations
