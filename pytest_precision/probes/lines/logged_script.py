"""Run a script up to one step, and log that step's tensor operations.

An operation of a loop begins where the update before it is over: a scheduler, the next batch and
zeroed gradients belong to it. The first one begins with the script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from pytest_precision._torch.regions import in_compiled_call
from pytest_precision.engine.observation import tensors_in
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.sequence import STEPS_OF_LOOPS, Segment
from pytest_precision.probes.lines.log.operation_log import OperationLogger
from pytest_precision.probes.lines.operation_files import write_operations
from pytest_precision.probes.lines.operations import Holding, StepEnd
from pytest_precision.recorders.loop_job import LoopJob
from pytest_precision.recorders.probe import Probe
from pytest_precision.recorders.rank_probes import RankProbe
from pytest_precision.recorders.scripts.loop_reader import LoopReader
from pytest_precision.recorders.scripts.script_recorder import run_script
from pytest_precision.recorders.scripts.steps import Steps
from pytest_precision.recorders.torch_hooks import LoopEvents
from pytest_precision.recorders.variant import Variant
from pytest_precision.trace.moment import LogRequest, Moment, Window


def log_script(
    script: Callable[..., Any],
    cell: Cell,
    folder: Path,
    window: Window | None,
    segment: Segment | None,
    variant: Variant,
    probes: Sequence[RankProbe] = (),
) -> int:
    """Run a script up to one step or checkpoint load, and log the tensor operations in it.

    Args:
        script: takes the cell and a `Record`.
        cell: whose train steps are made.
        folder: an existing one, the same for all ranks.
        window: the steps that are made end with it.
        segment: the operations that it makes; the first ones unless given.
        variant: says what is logged.
        probes: nothing of them is recorded beside a log.

    Returns:
        a number above 0, as `record_script` does.
    """
    request = variant.logged
    assert request is not None
    logger = OperationLogger(request)
    log = LoopLog(logger, request, cell.operations)
    with logger.installed():
        run_script(script, cell, folder, window, segment, [log])
    return 1


class LoopLog(Probe[Steps], LoopEvents):
    """Logs the tensor operations of one operation of a loop.

    Args:
        logger: logs.
        request: which operation is logged; None for the whole script.
        operations: of the sequence.
    """

    def __init__(
        self, logger: OperationLogger, request: LogRequest | None, operations: tuple[str, ...]
    ) -> None:
        self._logger = logger
        self._last = None if request is None else request.op
        self._whole = request is None or request.whole
        self._operations = operations

    def begin(self, run: Steps) -> None:
        """Have torch's hooks report to this, too; start the log if the loop begins in it."""
        self._schedule = run.schedule
        run.listeners.append(self)
        begins_in_it = self._last is not None and (
            run.schedule.load <= self._last <= run.schedule.op
        )
        if self._whole or begins_in_it:
            self._logger.start()
            self._logger.settings.restores = run.schedule.load >= 0

    def forward(self, module: nn.Module) -> None:
        """Register the paths of the called module and its submodules, for names in the log."""
        self._logger.settings.name(module)

    def update(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Stop watching an optimizer's options in a compiled step, which needs plain dicts."""
        if in_compiled_call():
            self._logger.settings.unwatch(optimizer)

    def updated(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Log later option changes; start the log if no step is left before the one to log."""
        if not in_compiled_call():
            self._logger.settings.watch(optimizer)
        op = self._schedule.op
        if not self._whole and self._last is not None and op < self._last:
            between = self._operations[op + 1 : self._last]
            if not STEPS_OF_LOOPS.intersection(between):
                self._logger.start()

    def shown(self, run: Steps, moment: Moment) -> None:
        """End the log if the operation that has just ended is the one to log."""
        log = self._logger.log
        if self._logger.active:
            log.steps.append(StepEnd(run.schedule.done, len(log.operations)))
        if self._logger.active and (self._last is None or moment.op >= self._last):
            self._logger.leave(state_of_loop(run.reader))
            self._logger.active = self._last is None

    def write(self, folder: Path, rank: int) -> None:
        """Write the log."""
        write_operations(self._logger.log, folder, rank)


class RecordedLog(LoopLog):
    """Logs all tensor operations of a loop that `record` runs, beside its trace."""

    @contextmanager
    def around(self, run: Steps, call: str) -> Iterator[None]:
        """Log what is called while the loop runs."""
        with self._logger.installed():
            yield


def recorded_log(job: LoopJob) -> RecordedLog | None:
    """Return the probe of a loop that `record --lines` runs; None of others."""
    return None if job.logged is None else RecordedLog(OperationLogger(job.logged), None, ())


def state_of_loop(reader: LoopReader) -> Iterator[tuple[Holding, Tensor]]:
    """Yield (kind and name, tensor) for each tensor of a loop's models and optimizers."""
    names: dict[Tensor, str] = {}
    for name, parameter in reader.names.parameters():
        names[parameter] = name
        yield Holding("param", name), parameter
        if parameter.grad is not None:
            yield Holding("grad", name), parameter.grad
    for name, buffer in reader.names.buffers():
        yield Holding("buffer", name), buffer
    for number, optimizer in enumerate(reader.optimizers):
        for parameter, state in optimizer.state.items():
            name = names.get(parameter, f"a parameter of optimizer {number}")
            fields = state.items() if isinstance(state, dict) else ()
            for key, value in fields:
                for suffix, tensor in tensors_in(value):
                    yield Holding(key, name + suffix), tensor
