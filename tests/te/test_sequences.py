"""What a run does beside its steps, and uneven data: all ready layouts of Transformer Engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import planted_te as planted
import pytest
import te_wheel

from pytest_precision import Cell, Parity, ParityError, layouts, workloads

pytestmark = [pytest.mark.slow, te_wheel.NEEDED]

ParityIn = Callable[[Cell], Parity]

GPT = partial(workloads.gpt, heads=2, head_width=16, depth=1, fixed_temperature=True)
MLP = {"width": 64, "depth": 1}
MOE = {"experts": 3, "depth": 1, "width": 32, "hidden": 64}
SINGLE = partial(layouts.te_experts, single_grouped_weight=True)
IN_ADAM = partial(layouts.te_linears, masters_in_optimizer=True)
BY_SHARDS = partial(layouts.te_linears, cast_by_shards=True)

EVERYTHING = "save-train1-eval-skip-train1-save-load-train1-save-restart-train1"
SWAPPED = "train1-eval-skip-save-load-swap-train1-save-restart-train1"


# CI goes through an evaluation, a skip and a checkpoint in `test_on_ranks.py`, and restarts there.
@pytest.mark.nightly
@pytest.mark.parametrize("fusion", [False, True], ids=["unfused", "fused"])
def test_experts_go_through_everything(parity_in: ParityIn, fusion: bool) -> None:
    """On three ranks, where the order of a sum depends on what is summed together."""
    cell = Cell("mxfp8", "quantized", fusion, EVERYTHING, 3)
    parity_in(cell).check(SINGLE, layouts.te_experts, workload=partial(workloads.moe, **MOE))


# In CI, `test_blocks.py` goes through the same on one and two ranks.
@pytest.mark.nightly
@pytest.mark.parametrize("precision", ["fp8_block", "nvfp4"])
def test_blocks_go_through_everything(parity_in: ParityIn, precision: str) -> None:
    """On three ranks, with quantized weights."""
    cell = Cell(precision, "quantized", sequence=EVERYTHING, world_size=3)
    whole = layouts.te_blocks
    parity_in(cell).check(partial(whole, layer="LayerNormMLP"), whole, workload=GPT)


@pytest.mark.parametrize(
    ("candidate", "reference", "precision", "ranks"),
    [
        (BY_SHARDS, layouts.te_linears, "fp8_block", 3),
        # In CI, `test_data_parallel.py` has DDP in delayed scaling, and `test_masters.py` has
        # masters in the optimizer.
        pytest.param(
            *(partial(layouts.te_linears, ddp=True), IN_ADAM, "fp8_delayed", 2),
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["by_shards", "ddp"],
)
def test_linears_go_on_in_the_other_layout(
    parity_in: ParityIn,
    candidate: Callable[..., object],
    reference: Callable[..., object],
    precision: str,
    ranks: int,
) -> None:
    """Each loads what the other has saved, since their modules are the same."""
    cell = Cell(precision, "quantized", sequence=SWAPPED, world_size=ranks)
    parity_in(cell).check(candidate, reference, workload=partial(workloads.mlp, **MLP))


def test_a_checkpoint_of_other_modules_is_refused(parity_in: ParityIn) -> None:
    """Transformer Engine's checkpoints name modules; the error says what to leave out."""
    cell = Cell("bf16", sequence="train1-save-swap-load-train1")
    with pytest.raises(ParityError, match=r"same modules .* only the model has; leave swap out"):
        parity_in(cell).check(SINGLE, layouts.te_experts, workload=partial(workloads.moe, **MOE))


# In CI, a format with blocks, which bf16 has none of, has no tokens to quantize either.
@pytest.mark.parametrize(
    ("precision", "ranks"),
    [
        pytest.param("bf16", 2, marks=pytest.mark.nightly),
        ("mxfp8", 2),
        pytest.param("nvfp4", 3, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_a_rank_has_no_tokens_for_its_experts(
    parity_in: ParityIn, precision: str, ranks: int
) -> None:
    """All its splits are 0 in a microbatch, and in the short step it has no other one."""
    cell = Cell(precision, sequence="train3", world_size=ranks)
    parity_in(cell).check(SINGLE, layouts.te_experts, workload=partial(planted.IdleMoe, **MOE))


@pytest.mark.parametrize(
    "precision",
    [
        "fp8_delayed",
        pytest.param("fp8_current", marks=pytest.mark.nightly),
        "fp8_block",
        pytest.param("mxfp8", marks=pytest.mark.nightly),  # which reduces no amax
        "nvfp4",
    ],
)
def test_a_rank_has_no_rows(parity_in: ParityIn, precision: str) -> None:
    """Its amaxes, gradients and shards are those of a rank that takes part all the same."""
    cell = Cell(precision, "quantized", True, "train3", 2)
    workload = partial(planted.IdleMlp, **MLP)
    parity_in(cell).check(BY_SHARDS, layouts.te_linears, workload=workload)
