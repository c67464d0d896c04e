"""NeMo-RL #2322: a mixture-of-experts model is loaded in bf16, whatever its configuration says.

torch's AdamW then has no fp32 weight to update, and at the learning rates of reinforcement learning
nearly all of its updates are rounded away. The workaround replaces it by Transformer Engine's
FusedAdam, which keeps the lower half of each fp32 weight as a 16-bit remainder, here with moments
in bf16.

The usual test, four losses within 2e-2, passes with and without the workaround.

This one gives both the same gradients, holds the effective weights against those of fp32 masters,
at a bound that the workaround keeps and the defect does not, and counts the lost updates.
"""

from __future__ import annotations

from functools import partial

import pytest
from fine_tuning import FOUR_LOSSES, SAME_RECIPE, FineTuning
from prescribed_gradients import Prescribed, update_error

from pytest_precision import Cell, Parity, ParityError, Ranks, bitwise, layouts

pytestmark = pytest.mark.precision_regression("NeMo-RL#2322")

DEFECT = layouts.adamw

FP32_MOMENTS = partial(layouts.fused_adam, store_param_remainders=True)

WORKAROUND = partial(FP32_MOMENTS, exp_avg_dtype="bf16", exp_avg_sq_dtype="bf16")

BF16 = Cell("bf16", "bf16")

STEPS = 100
"""What the bound is for. It is none for longer runs: a second moment in bf16 that decays by 0.999 a
step stands still once what a step adds is below half a unit in its last place."""

OWED = 2.0**-8
"""Largest norm of the error of the effective weights after `STEPS`, over that of their update: one
unit roundoff of bf16, which the moments are kept to. The workaround comes without a bound: this one
is this project's. The error was 2.5e-3 to 2.6e-3 here, and 2.7e-3 on other gradients."""

LRS = [1e-3, 1e-5, 1e-6]
"""From pre-training down to reinforcement learning. The defect's error was 0.04, 0.97 and 1.0."""

LOST = 0.05
"""Share of the updates of a tensor, by size, that may be lost."""

at_each_rate = pytest.mark.parametrize(
    "lr", [LRS[0], *(pytest.param(lr, marks=pytest.mark.nightly) for lr in LRS[1:])]
)
"""CI has the rate at which the two are hardest to tell apart."""

SAME_GRADIENTS = {**SAME_RECIPE, "grad": bitwise(), "reduced_grad": bitwise()}

in_bf16 = partial(pytest.mark.precision_matrix, precision=["bf16"], primary_weight=["bf16"])


@in_bf16(sequence=["train4"])
@pytest.mark.parametrize("layout", [DEFECT, WORKAROUND], ids=["defect", "workaround"])
def test_four_losses_see_nothing(parity: Parity, layout: object) -> None:
    """The two are the same to the usual test."""
    parity.check(layout, layouts.master_adamw, workload=FineTuning, criterion=FOUR_LOSSES)


@pytest.mark.world_size(1)
@at_each_rate
def test_the_workaround_keeps_its_bound(ranks: Ranks, lr: float) -> None:
    """Whatever the learning rate, since a remainder loses no update."""
    (error,) = ranks.run(update_error, WORKAROUND, layouts.master_adamw, lr, BF16, STEPS)
    assert error <= OWED


@pytest.mark.world_size(1)
@at_each_rate
def test_the_defect_does_not(ranks: Ranks, lr: float) -> None:
    """The bound is one that tells them apart, at the highest learning rate by a factor of ten."""
    (error,) = ranks.run(update_error, DEFECT, layouts.master_adamw, lr, BF16, STEPS)
    assert error > 5 * OWED


@pytest.mark.world_size(1)
def test_the_moments_are_what_the_bound_is_for(ranks: Ranks) -> None:
    """The same optimizer with fp32 moments needs a hundredth of it, and less."""
    (error,) = ranks.run(update_error, FP32_MOMENTS, layouts.master_adamw, 1e-3, BF16, STEPS)
    assert error < OWED / 100


@in_bf16(sequence=[f"train{STEPS // 4}"])
def test_the_workaround_loses_no_updates(parity: Parity) -> None:
    """On the same gradients bit for bit, in all steps."""
    parity.check(
        WORKAROUND,
        layouts.master_adamw,
        workload=partial(Prescribed, lr=1e-5),
        criterion=SAME_GRADIENTS,
        max_lost_updates=LOST,
    )


@in_bf16(sequence=[f"train{STEPS // 4}"])
def test_the_defect_loses_nearly_all(parity: Parity) -> None:
    """And the report says of which tensor."""
    with pytest.raises(ParityError, match=r"% of the updates of weight lost by size") as failure:
        parity.check(
            DEFECT,
            layouts.master_adamw,
            workload=partial(Prescribed, lr=1e-5),
            criterion=SAME_GRADIENTS,
            max_lost_updates=LOST,
        )
    lost = failure.value.verdict.lost_updates
    assert lost is not None
    assert lost["candidate"]["share_by_size"] > 0.9
