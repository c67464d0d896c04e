"""AReaL #1289: the number of decay steps is passed without the warm-up.

The scheduler subtracts the warm-up itself, so it is subtracted twice, and the cosine reaches its
minimum where the last tenth of the training is still to come. No weight, no gradient and no shape
is wrong, and nothing jumps.

The usual test, four losses within 2e-2, ends within the warm-up, where the two schedules are the
same bit for bit; of 220 losses, the first beyond 2e-2 is that of step 99.

This one compares the learning rate itself, exactly, and names the first step that runs at a wrong
one: step 24, where the relative difference is 1.7e-5.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from fine_tuning import STEPS, USUAL_TOLERANCE, WARMUP, FineTuning, relative_gaps, warmup_cosine
from torch.optim.lr_scheduler import LambdaLR

from pytest_precision import Cell, Engine, Parity, ParityError, Workload, layouts
from pytest_precision.layouts import compute_in

pytestmark = pytest.mark.precision_regression("AReaL#1289")


def scheduled(workload: Workload, cell: Cell, *, total: int) -> Engine:
    """AdamW with a schedule that is told to end after `total` train steps, warm-up included."""
    model = workload.model(cell)
    optimizer = torch.optim.AdamW(workload.groups(model))
    scheduler = LambdaLR(optimizer, partial(warmup_cosine, total=total))
    forward_model = compute_in(model, torch.bfloat16)
    return Engine(
        workload, cell, model, optimizer, scheduler=scheduler, forward_model=forward_model
    )


RIGHT = partial(scheduled, total=STEPS)
DEFECT = partial(scheduled, total=STEPS - WARMUP)

FIRST_WRONG = WARMUP + 2
"""Number of the train step: one past the peak, which both schedules reach after `WARMUP` steps."""


def in_bf16(sequence: str) -> pytest.MarkDecorator:
    """Run in a cell that computes in bf16 on fp32 weights."""
    return pytest.mark.precision_matrix(
        precision=["bf16"], primary_weight=["fp32"], sequence=[sequence]
    )


@in_bf16("train4")
def test_four_losses_see_nothing(parity: Parity) -> None:
    """Nor does anything else in four steps: every bit is the same."""
    parity.check(DEFECT, layouts.adamw, workload=FineTuning)


@in_bf16("train30")
def test_the_right_schedule_is_the_workloads(parity: Parity) -> None:
    """The layout with the planted defect has no other one, some steps beyond its warm-up."""
    parity.check(RIGHT, layouts.adamw, workload=FineTuning)


# The 30 steps above have the warm-up and a part of the cosine.
@pytest.mark.nightly
@in_bf16("train220")
def test_the_whole_schedule_is_the_workloads(parity: Parity) -> None:
    """To its end, where the cosine is at its minimum."""
    parity.check(RIGHT, layouts.adamw, workload=FineTuning)


@in_bf16(f"train{STEPS // 2}")
def test_lr_is_caught_at_the_first_wrong_step(parity: Parity) -> None:
    """Before anything that follows from it, in a run of which nothing but digests was kept.

    The first loss beyond the usual tolerance was at step 99, a tenth off by the end of 220.
    """
    with pytest.raises(ParityError, match=f"lr differs at step {FIRST_WRONG}") as failure:
        parity.check(DEFECT, layouts.adamw, workload=FineTuning)
    found = failure.value.verdict.divergence
    assert found is not None
    assert (found.kind, found.phase) == ("lr", "clip_grads")
    assert found.step == FIRST_WRONG
    curves = failure.value.verdict.curves
    assert curves is not None
    gaps = dict(zip(curves["step"], relative_gaps(curves["loss"]), strict=True))
    beyond = [step for step, gap in gaps.items() if gap > USUAL_TOLERANCE]
    assert beyond[0] > 3 * FIRST_WRONG
