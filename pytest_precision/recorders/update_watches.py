"""What watches the updates of one rank beside its trace: the meter of lost updates, and the oracle.

Both see a whole run or nothing: the values around a step are recorded again only to explain it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pytest_precision.engine.engine import Engine
from pytest_precision.matrix.cell import Cell
from pytest_precision.recorders.lost_updates import UpdateMeter
from pytest_precision.recorders.oracle.watch import UpdateOracle
from pytest_precision.workloads.base import Workload


class UpdateWatches:
    """Watches the updates of one rank.

    Args:
        workload: declares the rule.
        cell: where it is trained.
        whole: whether the whole run is recorded.
    """

    def __init__(self, workload: Workload, cell: Cell, *, whole: bool) -> None:
        self._meter = UpdateMeter() if whole else None
        self._oracle = UpdateOracle(workload, cell) if whole else None

    @contextmanager
    def around(self, engine: Engine, phase: str, step: int) -> Iterator[None]:
        """Watch the phase of `engine` inside."""
        with ExitStack() as stack:
            if self._oracle is not None:
                stack.enter_context(self._oracle.around(engine, phase, step))
            if self._meter is not None and phase == "optimizer_step":
                stack.enter_context(self._meter.around(engine, step))
            yield

    def save(self, folder: Path) -> None:
        """Keep with a checkpoint what a load must restore."""
        if self._oracle is not None:
            self._oracle.save(folder)

    def load(self, folder: Path) -> None:
        """Continue from the checkpoint."""
        if self._oracle is not None:
            self._oracle.load(folder)

    def write(self, folder: Path, rank: int) -> None:
        """Write what was found next to the trace."""
        for watch in (self._meter, self._oracle):
            if watch is not None:
                watch.write(folder, rank)
