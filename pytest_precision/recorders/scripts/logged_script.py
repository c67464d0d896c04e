"""Logged script: a script up to one operation of its sequence, whose tensor operations are logged.

An operation of a loop begins where the update before it is over: a scheduler, the next batch and
zeroed gradients belong to it. The first one begins with the script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from pytest_precision.engine.observation import tensors_in
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.sequence import STEPS_OF_LOOPS, Segment
from pytest_precision.recorders.lines.operation_log import OperationLogger
from pytest_precision.recorders.scripts.loop_reader import LoopReader
from pytest_precision.recorders.scripts.loop_schedule import LoopSchedule
from pytest_precision.recorders.scripts.runs import record_script
from pytest_precision.recorders.scripts.steps import Steps
from pytest_precision.trace.moment import Wanted, Window
from pytest_precision.trace.operation_files import write_operations
from pytest_precision.trace.operations import Holding
from pytest_precision.trace.segment_folders import folder_of


def log_script(
    script: Callable[..., Any],
    cell: Cell,
    folder: Path,
    window: Window | None,
    segment: Segment | None,
    wanted: Wanted,
) -> int:
    """Run a script as `record_script` does, and log one operation of its sequence.

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
    logged = LoggedScript(logger, wanted.op, cell.operations)
    with logger.installed(), logger.restores.followed():
        record_script(script, cell, folder, window, segment, logged)
    number = 0 if segment is None else segment.number
    write_operations(logger.log, folder_of(folder, number), dist.get_rank())
    return 1


class LoggedScript:
    """Turns the log of a script on and off.

    Args:
        logger: logs.
        op: index of the operation that is logged; None for the whole script.
        operations: of the sequence.
    """

    def __init__(
        self, logger: OperationLogger, op: int | None, operations: tuple[str, ...]
    ) -> None:
        self.logger = logger
        self._op = op
        self._operations = operations

    def begin(self, schedule: LoopSchedule) -> None:
        """Handle the start of a run of the script."""
        if self._op is None or schedule.load <= self._op <= schedule.op:
            self.logger.start()
            self.logger.restores.active = schedule.load >= 0

    def steps(self, *given: Any) -> Steps:
        """Return what follows the loop."""
        return LoggedSteps(self, *given)

    def updated(self, op: int) -> None:
        """Handle an update that the loop has made in an operation of the sequence."""
        if self._op is None:
            return
        between = self._operations[op + 1 : self._op]
        if op < self._op and not STEPS_OF_LOOPS.intersection(between):
            self.logger.start()

    def over(self, op: int, reader: LoopReader) -> None:
        """Handle the end of a step."""
        if self.logger.active and (self._op is None or op >= self._op):
            self.logger.leave(state_of_loop(reader))
            self.logger.active = self._op is None


class LoggedSteps(Steps):
    """Follows a loop whose operations are logged."""

    def __init__(self, logged: LoggedScript, *given: Any) -> None:
        super().__init__(*given)
        self._logged = logged
        # What is logged ends with its step.
        self.ends.ended = partial(logged.over, reader=self.reader)

    def forward(self, module: nn.Module) -> None:
        """Handle the call of a module: name its parts."""
        self._logged.logger.settings.name(module)
        super().forward(module)

    def updated(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Handle an optimizer's step: watch its groups from now on."""
        super().updated(optimizer, closure=closure)
        self._logged.logger.settings.watch(optimizer)
        self._logged.updated(self.schedule.op)


def state_of_loop(reader: LoopReader) -> Iterator[tuple[Holding, Tensor]]:
    """Yield name and tensor of what a loop holds between steps."""
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
