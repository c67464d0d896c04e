"""Transformer Engine's own layers against this package's emulation of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import planted_te as planted
import pytest
import te_wheel

from pytest_precision import Cell, Parity, ParityError, layouts, workloads

pytestmark = [pytest.mark.slow, te_wheel.NEEDED]

ParityApart = Callable[[Cell], Parity]

MOE = partial(workloads.moe, experts=3, depth=1, width=32, hidden=64)
SIZES = {"width": 64, "depth": 2}


@pytest.mark.parametrize("precision", ["fp8_delayed", "fp8_current", "fp8_block", "mxfp8", "nvfp4"])
def test_real_linears_are_the_emulated_ones(parity_apart: ParityApart, precision: str) -> None:
    """In every recipe, a frozen layer and an evaluation included, all bits are the same.

    In NVFP4 so are the random bits by which gradients are rounded. In delayed scaling a step has
    one microbatch, after which both update their scales.
    """
    mlp = planted.OneMicrobatch if precision == "fp8_delayed" else workloads.mlp
    cell = Cell(precision, sequence="train2-eval-train1")
    parity_apart(cell).check(planted.real, planted.emulated, workload=partial(mlp, **SIZES))


def test_the_emulation_updates_delayed_scaling_once_a_step(parity_apart: ParityApart) -> None:
    """Transformer Engine does after each microbatch, so the second one is cast by other scales."""
    with pytest.raises(ParityError) as red:
        parity_apart(Cell("fp8_delayed", sequence="train1")).check(
            planted.real, planted.emulated, workload=partial(workloads.mlp, **SIZES)
        )
    found = red.value.verdict.divergence
    assert found is not None, red.value
    assert (found.step, found.kind, found.index) == (1, "loss", (1,))


# In CI, linear layers, which a group is made of, have the bits of all recipes above.
@pytest.mark.parametrize(
    "precision",
    [
        pytest.param("fp8_block", marks=pytest.mark.nightly),
        "mxfp8",
        pytest.param("nvfp4", marks=pytest.mark.nightly),
    ],
)
def test_real_experts_are_the_emulated_ones(parity_apart: ParityApart, precision: str) -> None:
    """Grouped layers compute what this package emulates, where an expert is idle too."""
    real = partial(layouts.te_experts, masters_in_optimizer=True)
    parity_apart(Cell(precision)).check(real, layouts.fused_adam, workload=MOE)


@pytest.mark.parametrize(
    "options",
    [
        {"store_param_remainders": True},
        pytest.param(
            {"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}, marks=pytest.mark.nightly
        ),
        pytest.param(
            {"exp_avg_dtype": "fp8", "exp_avg_sq_dtype": "fp16"}, marks=pytest.mark.nightly
        ),
        {"exp_avg_dtype": "fp16", "exp_avg_sq_dtype": "fp8", "master_weight_dtype": "fp16"},
    ],
    ids=["remainders", "bf16", "fp8-fp16", "fp16-fp8-fp16"],
)
def test_fused_adam_is_the_emulated_one(parity_apart: ParityApart, options: dict[str, str]) -> None:
    """In each form its masters, moments and their scales have the same bits."""
    parity_apart(Cell("mxfp8", sequence="train1-save-load-train1")).check(
        partial(layouts.te_linears, masters_in_optimizer=True, **options),
        partial(layouts.fused_adam, **options),
        workload=partial(workloads.mlp, width=64, depth=1),
    )
