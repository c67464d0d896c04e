"""Logged run: run an engine up to one operation (a step, a load), and log its tensor operations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch import Tensor

from pytest_precision.engine import groups
from pytest_precision.engine.capture import Capture
from pytest_precision.engine.engine import Engine
from pytest_precision.engine.observation import tensors_in
from pytest_precision.engine.quantizing import quantized_state
from pytest_precision.matrix.tensor_key import unwrapped
from pytest_precision.probes.lines.log.operation_log import OperationLogger
from pytest_precision.probes.lines.operation_files import write_operations
from pytest_precision.probes.lines.operations import Holding, StepEnd
from pytest_precision.probes.races.perturbation_probe import PerturbationProbe
from pytest_precision.recorders.data_probe import DataProbe
from pytest_precision.recorders.engine_run import EngineRun
from pytest_precision.recorders.layout_job import LayoutJob
from pytest_precision.recorders.probe import Probe
from pytest_precision.trace.moment import LogRequest, Window


def log_layout(job: LayoutJob) -> int:
    """Run a layout's engine up to one step, load or save, and log its tensor operations.

    Args:
        job: what is run; its variant says what is logged.

    Returns:
        a number above 0, as `record_engine` does.
    """
    request = job.variant.logged
    assert request is not None
    logger = OperationLogger(request)
    stop = min(job.segment.stop, request.op + 1)
    window = Window(request.step, request.step)
    job = job._replace(window=window, segment=job.segment._replace(stop=stop))
    with logger.installed():
        run = EngineRun(job, (DataProbe(), EngineLog(logger, request), PerturbationProbe()))
        run.capture = Capture(snapshot=lambda observation: observation)
        run.run()
        logger.leave(state_of_engine(run.engine))
    write_operations(logger.log, job.place(), dist.get_rank())
    return 1


class EngineLog(Probe[EngineRun]):
    """Logs the tensor operations of one step, save or load with its build, or all up to it.

    Args:
        logger: logs.
        request: which operation is logged.
    """

    def __init__(self, logger: OperationLogger, request: LogRequest) -> None:
        self._logger = logger
        self._request = request

    @contextmanager
    def around(self, run: EngineRun, call: str) -> Iterator[None]:
        """Log a call, if it belongs to what is logged, and what is set in each engine."""
        log = self._logger.log
        is_logged = self._request.whole or run.op == self._request.op
        if is_logged and call == "operation" and not log.initial_values:
            self._logger.give(state_of_engine(run.engine))
        with self._logger.on(is_logged):
            yield
        if is_logged and call == "operation" and run.operation == "train":
            log.steps.append(StepEnd(run.step, len(log.operations)))
        if call == "build":
            self._logger.settings.watch(run.engine.optimizer)
            self._logger.settings.name(run.engine.model)


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
