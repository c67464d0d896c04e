"""Update watcher: keeps the weights of one rank before each update, and has it judged twice.

The meter says how much of the exact update was lost, the oracle whether it follows the rule that
the workload declares. Both see a whole run or nothing: the values around a step are recorded again
only to explain it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from pytest_precision.engine.engine import Engine
from pytest_precision.matrix.cell import Cell
from pytest_precision.recorders.lost_updates import UpdateMeter
from pytest_precision.recorders.oracle.update_oracle import UpdateOracle
from pytest_precision.recorders.weights import Weight
from pytest_precision.workloads.base import Workload


class UpdateWatcher:
    """Watches the updates of one rank.

    Args:
        workload: declares the rule.
        cell: where it is trained.
    """

    def __init__(self, workload: Workload, cell: Cell) -> None:
        self._meter = UpdateMeter()
        self._oracle = UpdateOracle(workload, cell)

    @contextmanager
    def around(self, engine: Engine, phase: str, step: int) -> Iterator[None]:
        """Watch the phase of `engine` inside; a step that overflowed is not judged."""
        if phase == "clip_grads":
            self._oracle.keep_reduced(engine)
        if phase != "optimizer_step":
            yield
            return
        watched = self._meter.before(engine.optimizer, Weight.of(engine))
        self._oracle.before(engine, watched)
        yield
        if bool(torch.isfinite(engine.grad_norm).all()):
            self._meter.after(engine.optimizer, watched, step)
            self._oracle.after(engine, watched, step)

    def save(self, folder: Path) -> None:
        """Keep with a checkpoint what a load must restore."""
        self._oracle.save(folder)

    def load(self, folder: Path) -> None:
        """Continue from the checkpoint."""
        self._oracle.load(folder)

    def write(self, folder: Path, rank: int) -> None:
        """Write what was found next to the trace."""
        self._meter.write(folder, rank)
        self._oracle.write(folder, rank)
