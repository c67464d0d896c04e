"""Run a script up to one step, and log that step's tensor operations.

An operation of a loop begins where the update before it is over: a scheduler, the next batch and
zeroed gradients belong to it. The first one begins with the script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from pytest_precision._torch.regions import in_compiled_call
from pytest_precision.engine.observation import tensors_in
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.sequence import STEPS_OF_LOOPS, Segment
from pytest_precision.recorders.lines.operation_log import OperationLogger
from pytest_precision.recorders.lost_updates import UpdateMeter
from pytest_precision.recorders.scripts.loop_reader import LoopReader
from pytest_precision.recorders.scripts.loop_schedule import LoopSchedule
from pytest_precision.recorders.scripts.loop_trace import LoopTrace
from pytest_precision.recorders.scripts.script_recorder import record_script
from pytest_precision.recorders.scripts.steps import Steps
from pytest_precision.trace.moment import Wanted, Window
from pytest_precision.trace.operation_files import write_operations
from pytest_precision.trace.operations import Holding, StepEnd
from pytest_precision.trace.segment_folders import folder_of


def log_script(
    script: Callable[..., Any],
    cell: Cell,
    folder: Path,
    window: Window | None,
    segment: Segment | None,
    wanted: Wanted,
) -> int:
    """Run a script up to one step or checkpoint load, and log the tensor operations in it.

    Args:
        script: takes the cell and a `Record`.
        cell: whose train steps are made.
        folder: an existing one, the same for all ranks.
        window: the steps that are made end with it.
        segment: the operations that it makes; the first ones unless given.
        wanted: what is logged.

    Returns:
        a number above 0, as `record_script` does.
    """
    logger = OperationLogger(wanted)
    runs: list[LoggedSteps] = []

    def made(*arguments: Any) -> LoggedSteps:
        runs.append(LoggedSteps(logger, wanted, cell.operations, *arguments))
        return runs[-1]

    with logger.installed():
        record_script(script, cell, folder, window, segment, made)
    number = 0 if segment is None else segment.number
    write_operations(logger.log, folder_of(folder, number), runs[-1].trace.rank)
    return 1


class LoggedSteps(Steps):
    """Divides a loop into steps, and logs the tensor operations of one of them.

    Args:
        logger: logs.
        request: which operation is logged; None for the whole script.
        operations: of the sequence.
        reader, trace, schedule, meter: see `Steps`.

    Attributes:
        trace: as given.
    """

    def __init__(
        self,
        logger: OperationLogger,
        request: Wanted | None,
        operations: tuple[str, ...],
        reader: LoopReader,
        trace: LoopTrace,
        schedule: LoopSchedule,
        meter: UpdateMeter | None = None,
    ) -> None:
        super().__init__(reader, trace, schedule, meter)
        self.trace = trace
        self._logger = logger
        self._op = None if request is None else request.op
        self._operations = operations
        self._whole = request is None or request.whole
        self.ends.ended = self._over
        if self._whole or (self._op is not None and schedule.load <= self._op <= schedule.op):
            logger.start()
            logger.settings.restores = schedule.load >= 0

    def forward(self, module: nn.Module) -> None:
        """Register the paths of the called module and its submodules, for names in the log."""
        self._logger.settings.name(module)
        super().forward(module)

    def update(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Stop watching an optimizer's options in a compiled step, which needs plain dicts."""
        super().update(optimizer, closure=closure)
        if in_compiled_call():
            self._logger.settings.unwatch(optimizer)

    def updated(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Log later option changes; start the log if no step is left before the one to log."""
        super().updated(optimizer, closure=closure)
        if not in_compiled_call():
            self._logger.settings.watch(optimizer)
        op = self.schedule.op
        if self._op is not None and not self._whole and op < self._op:
            between = self._operations[op + 1 : self._op]
            if not STEPS_OF_LOOPS.intersection(between):
                self._logger.start()

    def _over(self, op: int) -> None:
        """End the log if the operation that has just ended is the one to log."""
        log = self._logger.log
        if self._logger.active:
            log.steps.append(StepEnd(self.schedule.done, len(log.operations)))
        if self._logger.active and (self._op is None or op >= self._op):
            self._logger.leave(state_of_loop(self.reader))
            self._logger.active = self._op is None


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
            held = state.items() if isinstance(state, dict) else ()
            for key, value in held:
                for suffix, tensor in tensors_in(value):
                    yield Holding(key, name + suffix), tensor
