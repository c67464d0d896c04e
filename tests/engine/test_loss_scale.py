"""Dynamic loss scaling: when the scale moves, and what it must not change."""

from __future__ import annotations

import pytest
import torch
from one_step import finish_step

from pytest_precision import Cell, Engine, layouts, workloads
from pytest_precision.engine.loss_scale import GROWTH_INTERVAL, LossScale

FP16 = Cell("fp16", "fp32")


def step(engine: Engine, number: int) -> None:
    engine.forward_backward(number)
    finish_step(engine)


@pytest.mark.parametrize("overflow_at", [None, 2, 5, 7])
def test_the_scale_moves_as_torchs(overflow_at: int | None) -> None:
    """The update of `torch.amp.GradScaler`, step by step."""
    ours, theirs = LossScale(), torch.tensor(LossScale().scale)
    tracker = torch.zeros((), dtype=torch.int32)
    for number in range(1, 12):
        overflowed = number == overflow_at
        ours.update(overflowed=overflowed)
        found = torch.tensor(float(overflowed))
        torch._amp_update_scale_(theirs, tracker, found, 2.0, 0.5, GROWTH_INTERVAL)
        assert (ours.scale, ours.good_steps) == (float(theirs), int(tracker))


@pytest.mark.usefixtures("one_rank")
def test_gradients_are_unscaled_before_they_are_clipped() -> None:
    """The norm is that of the loss itself, and clipping bites as it does in fp32."""
    engine, exact = layouts.adamw(workloads.mlp(), FP16), layouts.adamw(workloads.mlp(), Cell())
    exact.model.load_state_dict(engine.model.state_dict())
    for one in (engine, exact):
        one.forward_backward(1)
        one.clip_grads()
    assert engine.scaler is not None
    assert engine.scaler.scale > 1
    # fp16 has 11 bits of mantissa: gradients of a few hundred roundings of 2^-11 each.
    assert float(engine.grad_norm) == pytest.approx(float(exact.grad_norm), rel=0.01)
    norm = torch.nn.utils.get_total_norm([p.grad for _, p in engine.masters()])
    assert float(norm) == pytest.approx(engine.max_norm, rel=1e-3)


@pytest.mark.usefixtures("one_rank")
def test_a_scale_that_is_too_large_skips_steps_until_it_fits() -> None:
    """Gradients overflow fp16, nothing moves but the scale, and then training goes on."""
    engine = layouts.adamw(workloads.mlp(), FP16)
    assert engine.scaler is not None
    engine.scaler.scale = 2.0**24
    before = [p.detach().clone() for p in engine.model.parameters()]
    for skipped in range(24):
        step(engine, 1)
        if torch.isfinite(engine.grad_norm):
            break
        assert engine.scaler.scale == 2.0 ** (23 - skipped)
        assert all(map(torch.equal, before, engine.model.parameters()))
    assert skipped > 0
    assert not all(map(torch.equal, before, engine.model.parameters()))
