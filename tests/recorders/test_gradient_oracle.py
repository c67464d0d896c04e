"""What was judged on one side is not computed again where the other side shows the same."""

from __future__ import annotations

from pathlib import Path

import torch

from pytest_precision import Engine, layouts, workloads
from pytest_precision.matrix.cell import Cell
from pytest_precision.recorders.engine_recorder import Layout
from pytest_precision.recorders.recorded_run import record_engine
from pytest_precision.trace.gradient_log import GradientLog, RightSteps
from pytest_precision.trace.moment import EVERYTHING
from pytest_precision.workloads.base import Workload

CELL = Cell(sequence="train2")


class Doubled(Engine):
    """Multiplies each gradient by 2."""

    def forward_backward(self, step: int) -> None:
        super().forward_backward(step)
        for weight in self.model.parameters():
            if weight.grad is not None:
                weight.grad.mul_(2)


def doubled(workload: Workload, cell: Cell) -> Engine:
    model = workload.model(cell)
    return Doubled(workload, cell, model, torch.optim.AdamW(workload.groups(model)))


def judged(layout: Layout, folder: Path, right: RightSteps | None = None) -> GradientLog:
    folder.mkdir()
    record_engine(layout, layout, workloads.mlp, CELL, folder, EVERYTHING, right=right)
    return GradientLog.read(folder, 1)


def test_only_the_same_bits_are_not_judged_again(one_rank: None, tmp_path: Path) -> None:
    """What was found of a step is taken over, and wrong gradients are found all the same."""
    first = judged(layouts.adamw, tmp_path / "first")
    assert len(first.right) == 2
    assert sum(number for number, _ in first.right.values()) == first.judged
    known = dict.fromkeys(first.right, (7, 0.5))
    again = judged(layouts.adamw, tmp_path / "again", known)
    assert (again.judged, again.worst, again.right) == (14, 0.5, known)
    wrong = judged(doubled, tmp_path / "wrong", known)
    assert wrong.breaches
    assert not wrong.right
