"""Engine run: take an engine through train, save and load operations, and tell probes of each call.

What a run records and judges is in the probes; what happens to the engine is here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import torch
import torch.distributed as dist

from pytest_precision._progress import advance
from pytest_precision.engine.capture import Capture
from pytest_precision.engine.engine import STEP_PHASES, Engine
from pytest_precision.errors import expect_type, expected_but_got
from pytest_precision.matrix.sequence import OPERATIONS
from pytest_precision.recorders.layout_job import LayoutJob
from pytest_precision.recorders.probe import Probe, around_call
from pytest_precision.recorders.run_environment import FRESH_SEED, with_backend
from pytest_precision.trace.moment import END, INIT, Moment


class EngineRun:
    """Takes a training engine through a sequence of operations (train, save, load).

    Args:
        job: what is run.
        probes: what watches or disturbs it.

    Attributes:
        job: as given.
        cell: in which the engine runs, with the backend that was chosen.
        backend: why it was chosen, for the environment.
        operations: of the whole sequence.
        workload: what is trained.
        engine: what trains it; a load builds another one.
        capture: what the engine hands its tensors to.
        op, operation: index and name of the operation that runs.
        step: number of the train step that runs, or of the last one.
        paths: kernels that engines ran, see `Header`.
        violations: what engines stored otherwise than promised, see `Header`.
    """

    engine: Engine

    def __init__(self, job: LayoutJob, probes: Sequence[Probe[EngineRun]]) -> None:
        segment = job.segment
        cell, self.backend = with_backend(job.cell)
        self.cell = cell.of_segment(segment)
        self.job = job
        self.operations = cell.operations
        self.workload = job.own_workload()
        self.capture = Capture()
        self.op, self.operation, self.step = INIT.op, INIT.operation, segment.done
        self.paths: set[str] = set()
        self.violations: dict[str, None] = {}
        self._probes = probes
        self._layout, self._other = job.layout, job.other
        if self.operations[: segment.start + 1].count("swap") % 2:
            self._layout, self._other = self._other, self._layout
        for probe in probes:
            probe.begin(self)
        self.build(job.seed)
        self.engine.expect_world_sizes({part.world_size for part in cell.segments})
        self.look_at_storage()

    def around(self, call: str) -> AbstractContextManager[None]:
        """Return a context that tells all probes of a call."""
        return around_call(self._probes, self, call)

    def show(self, phase: str) -> None:
        """Let all probes look at the engine after a phase."""
        moment = Moment(self.op, self.operation, self.step, phase)
        for probe in self._probes:
            probe.shown(self, moment)

    def run(self) -> None:
        """Run the segment's operations, up to the last step of the job's window."""
        start, stop = self.job.segment.start, self.job.segment.stop
        self.engine.start(self.capture)
        if self.job.segment.number:
            self.op, self.operation = start, self.operations[start]
            self.restore()
            start += 1
        else:
            self.show("init")
        last = sys.maxsize if self.job.window is None else self.job.window.last
        for self.op in range(start, stop):
            self.operation = self.operations[self.op]
            if self.step + (self.operation == "train") > last:
                return
            with self.around("operation"):
                getattr(self, OPERATIONS[self.operation].run)()
            advance(self.op + 1, stop, 0)
        if stop == len(self.operations) and self.operation == "train":
            self.show(END)

    def write(self, folder: Path, rank: int) -> None:
        """Let all probes write their results into the folder of the trace."""
        for probe in self._probes:
            probe.write(folder, rank)

    def build(self, seed: int) -> None:
        """Build the engine under test, with weights initialised from a seed.

        Raises:
            TypeError: the layout returns none.
        """
        torch.manual_seed(seed)
        with self.around("build"):
            engine = self._layout(self.workload, self.cell)
            if not isinstance(engine, Engine):
                raise TypeError(
                    expected_but_got(
                        "the layout to return an Engine",
                        f"a {type(engine).__name__}",
                        "end it with `return Engine(workload, cell, model, optimizer)`",
                    )
                )
            engine.expect_even_shares()
            self.engine = engine
        # A layout may draw more random numbers than another while it builds its engine.
        torch.manual_seed(seed)

    def look_at_storage(self) -> None:
        """Note which kernels the engine ran, and its tensors that lack the required dtype."""
        self.paths |= self.engine.paths()
        self.violations |= dict.fromkeys(self.engine.violations())

    def train(self) -> None:
        """Run one train step, phase by phase."""
        self.step += 1
        self.capture.begin()
        with self.around("forward_backward"):
            self.engine.forward_backward(self.step)
        self.engine.watch_changes()
        self.show("forward_backward")
        for call, phases in self._calls():
            with self.around(call):
                getattr(self.engine, call)()
                self._expect_norm(call, phases)
            for phase in phases:
                self.show(phase)

    def _calls(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield (method, phases): the engine methods to call after `forward_backward`, in order."""
        if self.engine.fused_step:
            self.engine.keep_rates()
            yield "optimizer_step", STEP_PHASES[1:]
        else:
            yield from ((phase, (phase,)) for phase in STEP_PHASES[1:])

    def _expect_norm(self, call: str, phases: tuple[str, ...]) -> None:
        """Raise if the engine's `grad_norm` is not a tensor after a method that clips."""
        if "clip_grads" in phases:
            advice = f"set it in {call}, a number wrapped in torch.tensor"
            expect_type("grad_norm", self.engine.grad_norm, torch.Tensor, "a tensor", advice)

    def skip(self) -> None:
        """Run a train step made to overflow, which all ranks must skip.

        Probes are not told of its calls: it updates nothing, and its gradients are of nobody.
        """
        # Only here, since few sequences have such a step.
        from pytest_precision.recorders.skipped_step import SkippedStep

        skipped_step = SkippedStep(self.engine, self.capture, self.cell)
        self.capture.begin()
        skipped_step.overflow(self.step + 1)
        for call, phases in self._calls():
            getattr(self.engine, call)()
            self._expect_norm(call, phases)
        skipped_step.expect_overflow()
        self.show("skip")
        self.violations |= dict.fromkeys(skipped_step.changed_rates(self.step))

    def evaluate(self) -> None:
        """Compute the evaluation losses."""
        self.capture.begin()
        with self.around("evaluate"):
            self.engine.evaluate()
        self.show("evaluate")

    @property
    def _checkpoint(self) -> Path:
        return self.job.folder / "checkpoint"

    def save(self) -> None:
        """Save a checkpoint of the engine on all ranks."""
        with self.around("save"):
            self.engine.save(self._checkpoint)
        # A rank must not load, or save over, what another has not finished.
        dist.barrier()
        self.show("save")

    def load(self) -> None:
        """Load the last checkpoint into a newly built engine."""
        self.look_at_storage()
        self.build(FRESH_SEED)
        self.engine.start(self.capture)
        self.restore()

    def restore(self) -> None:
        """Load the last checkpoint into the same engine on all ranks."""
        with self.around("load"):
            self.engine.load(self._checkpoint)
        dist.barrier()
        self.show("load")

    def swap(self) -> None:
        """Build an engine of the other run's layout, and load the last checkpoint into it."""
        self._layout, self._other = self._other, self._layout
        self.load()
