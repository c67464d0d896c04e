"""Logged run: run an engine up to one operation (a step, a load), and log its tensor operations."""

from __future__ import annotations

from collections.abc import Iterator

import torch.distributed as dist
from torch import Tensor

from pytest_precision.engine import groups
from pytest_precision.engine.capture import Capture
from pytest_precision.engine.engine import Engine
from pytest_precision.engine.observation import tensors_in
from pytest_precision.matrix.tensor_key import unwrapped
from pytest_precision.modules.state import quantized_state
from pytest_precision.recorders.engine_recorder import EngineRecorder
from pytest_precision.recorders.layout_job import LayoutJob
from pytest_precision.recorders.lines.operation_log import OperationLogger
from pytest_precision.trace.moment import Wanted, Window
from pytest_precision.trace.operation_files import write_operations
from pytest_precision.trace.operations import Holding, StepEnd


def log_layout(job: LayoutJob, wanted: Wanted) -> int:
    """Run a layout's engine up to one step, load or save, and log its tensor operations.

    Args:
        job: what is run.
        wanted: what is logged.

    Returns:
        a number above 0, as `record_engine` does.
    """
    logger = OperationLogger(wanted)
    place = job.place()
    with logger.installed():
        run = LoggedRun(logger, wanted, job)
        run.run()
        logger.leave(state_of_engine(run.engine))
    write_operations(logger.log, place, dist.get_rank())
    return 1


class LoggedRun(EngineRecorder):
    """Runs an engine, and logs the tensor operations of one step, load or save, or all up to it."""

    def __init__(self, logger: OperationLogger, wanted: Wanted, job: LayoutJob) -> None:
        self._logger = logger
        self._wanted = wanted
        super().__init__(job._replace(window=Window(wanted.step, wanted.step)))
        self.capture = Capture(snapshot=lambda seen: seen)
        self.engine.capture = self.capture

    @property
    def is_logged(self) -> bool:
        """Return whether the current operation of the sequence is logged."""
        return self._wanted.whole or self.op == self._wanted.op

    def build(self, seed: int) -> Engine:
        """Build the engine, and log its tensor operations if the build is to be logged."""
        with self._logger.on(self.is_logged):
            engine = super().build(seed)
        self._logger.settings.watch(engine.optimizer)
        self._logger.settings.name(engine.model)
        return engine

    def restore(self) -> None:
        """Load the checkpoint, and log its tensor operations if this load is to be logged."""
        with self._logger.on(self.is_logged):
            super().restore()

    def run_operation(self) -> None:
        """Run the next operation, such as a step or save, unless it comes after the one to log."""
        log = self._logger.log
        if self.is_logged and not log.initial_values:
            self._logger.give(state_of_engine(self.engine))
        if self.op <= self._wanted.op:
            with self._logger.on(self.is_logged):
                super().run_operation()
            if self.is_logged and self.operation == "train":
                log.steps.append(StepEnd(self.step, len(log.operations)))

    def observe(self, phase: str) -> None:
        """Do nothing; earlier runs have recorded the engine's tensors."""


def state_of_engine(engine: Engine) -> Iterator[tuple[Holding, Tensor]]:
    """Yield (kind and name, tensor) for each tensor of an engine's state."""
    for path, parameter in engine.model.named_parameters():
        name = unwrapped(path)
        yield Holding("param", name), parameter
        gradient = engine.gradient(parameter)
        if gradient is not None:
            yield Holding("grad", name), gradient
    for kind, name, tensor in quantized_state(engine.model):
        yield Holding(kind, name), tensor
    for name, buffer in engine.model.named_buffers():
        yield Holding("buffer", unwrapped(name)), buffer
    for path, master in engine.masters():
        name = unwrapped(path)
        yield Holding("master", name), master
        if master.grad is not None:
            yield Holding("final_grad", name), master.grad
        for key, value in groups.state_of(engine.optimizer, master).items():
            for suffix, tensor in tensors_in(value):
                yield Holding(key, name + suffix), tensor
