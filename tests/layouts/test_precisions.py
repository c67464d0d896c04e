"""Quantized precisions and fp16 in the ready-made layouts: what agrees bit for bit, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from pytest_precision import (
    Cell,
    Parity,
    ParityError,
    Workload,
    bitwise,
    layouts,
    unchecked,
    workloads,
)
from pytest_precision.matrix.precisions import PRECISIONS

ParityIn = Callable[[Cell], Parity]

QUANTIZED = [name for name, precision in PRECISIONS.items() if precision.quantized]
STATELESS = [name for name in QUANTIZED if name != "fp8_delayed"]
NIGHTLY = pytest.mark.nightly

SMALL_GPT, SMALL_MOE = (partial(made, depth=1) for made in (workloads.gpt, workloads.moe))
"""One block has every kind of layer; `test_agreement.py` runs the layouts with more of them."""

EXACT_SUMS = [name for name in QUANTIZED if name != "nvfp4"]
"""Precisions whose bf16 gradients have sums that fp32 holds; those of NVFP4 spread too far."""


def in_ci(names: Sequence[str], *chosen: str) -> list[Any]:
    """Leave to the nightly run all precisions but the chosen ones.

    CI has those with a history, with scales of a tensor and with scales of a block in one test or
    another, and all of them in `test_shards_are_cast_as_the_whole`.
    """
    return [pytest.param(one, marks=() if one in chosen else NIGHTLY) for one in names]


@pytest.mark.parametrize("precision", in_ci(["fp16", *QUANTIZED], "fp16"))
def test_fsdp2_on_fp32_shards_is_replicated_adamw(parity_in: ParityIn, precision: str) -> None:
    """Gathered weights are the cast ones, so their bytes are too; and so is what they learn."""
    ranks = 3 if precision in EXACT_SUMS else 2
    cell = Cell(precision, "fp32", sequence="train-eval-skip-train", world_size=ranks)
    verdict = parity_in(cell).check(layouts.fsdp2, layouts.adamw, workload=SMALL_GPT)
    assert verdict.observations > 500


@pytest.mark.parametrize("precision", in_ci(["fp16", "fp8_delayed", "nvfp4"], "fp8_delayed"))
def test_ddp_is_replicated_adamw(parity_in: ParityIn, precision: str) -> None:
    """Also where the recipe has state of its own, which DDP must not overwrite by rank 0's."""
    cell = Cell(precision, "fp32", sequence="train-save-load-train", world_size=2)
    parity_in(cell).check(layouts.ddp, layouts.adamw, workload=SMALL_GPT)


@pytest.mark.parametrize("precision", in_ci(EXACT_SUMS, "fp8_delayed", "mxfp8"))
def test_the_number_of_ranks_is_no_part_of_the_mathematics(
    parity_in: ParityIn, precision: str
) -> None:
    """Three ranks are one: amaxes are reduced, and sums of bf16 gradients are exact."""
    cell = Cell(precision, "fp32", sequence="train2", world_size=3)
    alone = cell.replace(world_size=1)
    parity_in(cell).check(
        layouts.adamw, layouts.adamw, workload=workloads.mlp, reference_cell=alone
    )


@pytest.mark.parametrize(
    ("precision", "workload"),
    [
        ("nvfp4", workloads.mlp),
        # In CI, a model without experts.
        *(pytest.param(precision, SMALL_MOE, marks=NIGHTLY) for precision in STATELESS),
    ],
    ids=lambda value: value if isinstance(value, str) else "moe" if value is SMALL_MOE else "mlp",
)
def test_an_evaluation_leaves_no_trace(
    parity_in: ParityIn, precision: str, workload: Callable[..., Workload]
) -> None:
    """Train-eval-train is training straight on."""
    cell = Cell(precision, "bf16", sequence="train-eval-train", world_size=2)
    straight = cell.replace(sequence="train2")
    parity_in(cell).check(layouts.adamw, layouts.adamw, workload=workload, reference_cell=straight)


def test_with_delayed_scaling_an_evaluation_leaves_its_amaxes(parity_in: ParityIn) -> None:
    """They count in the history of the training step that follows, as in Transformer Engine."""
    cell = Cell("fp8_delayed", "fp32", sequence="train-eval-train2", world_size=2)
    straight = cell.replace(sequence="train3")
    with pytest.raises(ParityError) as failure:
        parity_in(cell).check(
            layouts.adamw, layouts.adamw, workload=workloads.gpt, reference_cell=straight
        )
    found = failure.value.verdict.divergence
    assert found is not None
    assert (found.step, found.phase, found.kind) == (2, "optimizer_step", "scale")


@pytest.mark.parametrize("precision", in_ci(STATELESS, "mxfp8"))
def test_quantized_primary_weights_are_the_bytes_of_bf16_ones(
    parity_in: ParityIn, precision: str
) -> None:
    """Masters are cast to bf16 before they are quantized, so both forwards read the same bytes."""
    cell = Cell(precision, "quantized", sequence="train-save-load-train", world_size=2)
    stored = unchecked(reason="bytes on one side, bf16 on the other")
    parity_in(cell).check(
        layouts.master_adamw,
        layouts.master_adamw,
        workload=SMALL_GPT,
        reference_cell=cell.replace(primary_weight="bf16"),
        criterion=dict.fromkeys(("param", "used_param", "quantized", "scale", "amax"), stored),
    )


@pytest.mark.parametrize("precision", in_ci(["fp8_delayed", "mxfp8", "nvfp4"], "mxfp8"))
def test_fsdp2_shards_are_masters(parity_in: ParityIn, precision: str) -> None:
    """With gradients in bf16: the same masters, cast to bf16 and quantized on both sides."""
    cell = Cell(precision, "fp32", sequence="train-eval-train", world_size=2)
    parity_in(cell).check(
        partial(layouts.fsdp2, reduce_dtype="bf16"),
        layouts.master_adamw,
        workload=SMALL_GPT,
        reference_cell=cell.replace(primary_weight="bf16"),
        criterion={
            "param": unchecked(reason="fp32 shards on one side, rounded parameters on the other"),
            # FSDP2 hands the bf16 sum out in the storage dtype: the same values, wider.
            "reduced_grad": bitwise(check_dtype=False),
        },
    )


@pytest.mark.parametrize("primary_weight", [pytest.param("bf16", marks=NIGHTLY), "quantized"])
@pytest.mark.parametrize("precision", in_ci(QUANTIZED, "fp8_delayed"))
def test_fused_accumulation_survives_interruptions(
    parity_in: ParityIn, precision: str, primary_weight: str
) -> None:
    """A checkpoint between steps, with fp32 gradients added up by the GEMM on three ranks."""
    cell = Cell(precision, primary_weight, True, "train-save-load-train", 3)
    straight = cell.replace(sequence="train2")
    parity_in(cell).check(
        layouts.master_adamw, layouts.master_adamw, workload=workloads.mlp, reference_cell=straight
    )


@pytest.mark.parametrize(
    ("precision", "layout"),
    [
        ("fp8_delayed", "any_precision_adamw"),
        # In CI, test_optimizers.py has checkpoints of each optimizer; this one has a history.
        pytest.param("nvfp4", "fused_adam", marks=NIGHTLY),
        pytest.param("fp8_delayed", "fused_adam", marks=NIGHTLY),
        pytest.param("nvfp4", "any_precision_adamw", marks=NIGHTLY),
    ],
)
def test_other_optimizers_save_and_load_quantized_training(
    parity_in: ParityIn, precision: str, layout: str
) -> None:
    """On bf16 parameters, with the history of delayed scaling in the checkpoint."""
    cell = Cell(precision, "bf16", sequence="train2-save-load-train")
    made = getattr(layouts, layout)
    straight = cell.replace(sequence="train3")
    parity_in(cell).check(made, made, workload=workloads.mlp, reference_cell=straight)


def test_fp16_parameters_have_masters_and_a_scaled_loss(parity_in: ParityIn) -> None:
    """The scale of the loss is in the checkpoint."""
    cell = Cell("fp16", "fp16", sequence="train2-save-load-train", world_size=2)
    straight = cell.replace(sequence="train3")
    parity_in(cell).check(
        layouts.master_adamw, layouts.master_adamw, workload=SMALL_GPT, reference_cell=straight
    )
