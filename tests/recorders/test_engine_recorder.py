"""What a recorder takes from an engine, on one rank."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from package_probes import OF_ENGINES

from pytest_precision import Cell, Engine, Workload, layouts, workloads
from pytest_precision.engine.engine import STEP_PHASES
from pytest_precision.recorders.engine_recorder import record_engine
from pytest_precision.recorders.layout_job import Layout, LayoutJob
from pytest_precision.recorders.variant import Variant
from pytest_precision.trace.moment import EVERYTHING, Moment
from pytest_precision.trace.reader import Trace

pytestmark = pytest.mark.usefixtures("one_rank")


class OwnLoop(Engine):
    """A loop that takes nothing but microbatches from the package."""

    def forward_backward(self, step: int) -> None:
        self.optimizer.zero_grad()
        for number, microbatch in self.my_microbatches(step):
            total, _ = self.workload.loss(self.forward_model, microbatch)
            self.report_loss(number, total / self.step_tokens)
            (total / self.step_tokens * self.loss_factor).backward()


def made(engine: type[Engine], workload: Workload, cell: Cell) -> Engine:
    model = workload.model(cell)
    return engine(workload, cell, model, torch.optim.AdamW(workload.groups(model)))


def tensors(trace: Trace, moment: Moment, kind: str) -> dict[str, torch.Tensor]:
    entries = trace.entries(moment)
    return {entry.name: trace.tensor(entry) for entry in entries if entry.kind == kind}


def record(layout: Layout, cell: Cell, folder: Path, **more: Any) -> None:
    segment = cell.segments[0]
    record_engine(
        LayoutJob(
            *(layout, layout, workloads.mlp, cell, folder, segment, EVERYTHING),
            probes=OF_ENGINES,
            **more,
        )
    )


def test_each_phase_of_a_train_step_can_be_delayed(tmp_path: Path) -> None:
    """Forward and backward, reduction, clipping, the optimizer; not an evaluation."""
    pauses: list[None] = []
    cell = Cell(sequence="train-eval-train")
    layout = layouts.adamw
    record(layout, cell, tmp_path, pause=partial(pauses.append, None))
    assert len(pauses) == 2 * len(STEP_PHASES)


def test_a_run_that_is_looked_at_where_steps_end_reads_nothing_else(tmp_path: Path) -> None:
    """What reads in between waits for the device, and so may heal a race."""
    reads: list[str] = []

    class Seen(OwnLoop):
        def observe(self, phase: str, capture: Any) -> Any:
            reads.append(phase)
            return super().observe(phase, capture)

        def show(self, kind: str, *args: Any, **kwargs: Any) -> Any:
            reads.append(kind)  # when it is asked for, since this is a generator
            yield from super().show(kind, *args, **kwargs)

    def layout(workload: Workload, cell: Cell) -> Engine:
        model = workload.model(cell)
        return Seen(workload, cell, model, torch.optim.AdamW(workload.groups(model)))

    ends = Variant(ends_only=True)
    cell = Cell(sequence="train2")
    record(layout, cell, tmp_path, variant=ends)
    assert {"optimizer_step", "param"} <= {*reads}
    between = {"used_param", "loss", "grad", "reduced_grad", "grad_norm", *STEP_PHASES[:-1]}
    assert not between & {*reads}


def test_each_step_shows_the_weights_that_it_used(tmp_path: Path) -> None:
    """Those of the step before are forgotten, whoever has written the loop."""
    record(partial(made, OwnLoop), Cell(sequence="train2"), tmp_path)
    trace = Trace(tmp_path, 1)
    updated = tensors(trace, Moment(0, "train", 1, "optimizer_step"), "param")
    used = tensors(trace, Moment(1, "train", 2, "forward_backward"), "used_param")
    assert used.keys() == updated.keys()
    assert all(torch.equal(used[name], updated[name]) for name in used)


def test_each_step_shows_as_many_losses_as_it_has_microbatches(tmp_path: Path) -> None:
    """Steps have unequal numbers of them."""
    cell = Cell(sequence="train3", world_size=1)
    record(layouts.adamw, cell, tmp_path)
    trace = Trace(tmp_path, 1)
    for op, step in enumerate((1, 2, 3)):
        moment = Moment(op, "train", step, "forward_backward")
        losses = [entry for entry in trace.entries(moment) if entry.kind == "loss"]
        assert len(losses) == len(workloads.mlp().microbatches(cell, step))


class InOneCall(Engine):
    """A framework that clips and returns the norm as a number."""

    fused_step = True

    def optimizer_step(self) -> None:
        self.grad_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0).item()  # type: ignore[assignment]
        self.optimizer.step()


def test_a_norm_that_is_a_number_is_refused(tmp_path: Path) -> None:
    """By its name, with what to write instead."""
    refused = (
        r"expected a tensor but got grad_norm=.* \(float\); "
        r"set it in optimizer_step, a number wrapped in torch\.tensor"
    )
    with pytest.raises(TypeError, match=refused):
        record(partial(made, InOneCall), Cell(sequence="train1"), tmp_path)


class Late(Engine):
    """Has no norm until it has clipped."""

    def forward_backward(self, step: int) -> None:
        self.grad_norm = None  # type: ignore[assignment]
        super().forward_backward(step)


class OfNoOverflow(Late):
    """Has none of a step whose gradients overflow, either."""

    def clip_grads(self) -> None:
        super().clip_grads()
        if not self.grad_norm.isfinite():
            self.grad_norm = None  # type: ignore[assignment]


def test_a_norm_is_asked_for_where_gradients_are_clipped(tmp_path: Path) -> None:
    """Before that nothing reads it; after that it is a tensor, in a skipped step too."""
    record(partial(made, Late), Cell(sequence="train1-skip"), tmp_path / "late")
    refused = r"got grad_norm=None \(NoneType\); set it in clip_grads, a number wrapped in"
    with pytest.raises(TypeError, match=refused):
        record(partial(made, OfNoOverflow), Cell(sequence="train1-skip"), tmp_path / "refused")
