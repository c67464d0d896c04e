"""Megatron-LM #5974: an optimizer makes its state by a step that counts.

Megatron-FSDP makes a step with zero gradients before training, so that checkpoints find the state
of the optimizer. It left the counters at 1, so that the first real update had the bias correction
of the second one, and was smaller by a quarter. The runs converged.

Here the counters themselves are compared, and differ before the first step.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from fine_tuning import USUAL_TOLERANCE, relative_gaps
from sharded_loops import LR, train

from pytest_precision import Cell, Parity, ParityError, script, unchecked

pytestmark = pytest.mark.precision_regression("Megatron-LM#5974")


def with_state(groups: Any, *, inert: bool) -> torch.optim.Optimizer:
    """Make AdamW, and its state by a step with zero gradients that moves nothing."""
    optimizer = torch.optim.AdamW(groups, lr=0.0)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    for group in optimizer.param_groups:
        group["lr"] = LR
    for state in optimizer.state.values():
        if inert:
            state["step"].zero_()
    return optimizer


@script
def trainer(cell: Cell, record: Any, inert: bool = False) -> None:
    """The loop, with a step that counts unless it is inert."""
    train(record, partial(with_state, inert=inert))


in_fp32 = pytest.mark.precision_matrix(precision=["fp32"], sequence=["train4"], world_size=[2])


@in_fp32
def test_the_counter_is_caught_before_the_first_step(parity: Parity) -> None:
    """Four losses would not have found it."""
    with pytest.raises(ParityError, match="step differs before the first step") as failure:
        parity.check(trainer, partial(trainer, inert=True))
    curves = failure.value.verdict.curves
    assert curves is not None
    assert max(relative_gaps(curves["loss"])) < USUAL_TOLERANCE


@in_fp32
def test_the_update_is_caught_at_step_1(parity: Parity) -> None:
    """For those who do not look at counters."""
    nobody_looks = {"step": unchecked(reason="its effect is shown instead")}
    with pytest.raises(ParityError, match="master differs at step 1"):
        parity.check(trainer, partial(trainer, inert=True), criterion=nobody_looks)
