"""Planted defects of quantized training are caught where they first show."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import planted_quantization as planted
import pytest
from defects.gradients import RoundsBeforeAccumulating

from pytest_precision import Cell, Parity, ParityError, layouts, workloads

ParityIn = Callable[[Cell], Parity]


@pytest.mark.parametrize(
    ("kind", "precision", "where"),
    [
        (planted.StaleWeights, "mxfp8", (2, "forward_backward", "used_quantized")),
        (planted.StaleWeights, "fp8_current", (2, "forward_backward", "used_quantized")),
        (planted.ColumnwiseWeights, "mxfp8", (1, "forward_backward", "used_quantized")),
        (planted.ColumnwiseInputs, "nvfp4", (1, "forward_backward", "grad")),
        (planted.LocalAmaxes, "fp8_delayed", (1, "optimizer_step", "scale")),
        (planted.SameBits, "nvfp4", (2, "forward_backward", "grad")),
    ],
)
def test_a_defect_of_quantization_is_found_where_it_first_shows(
    parity_in: ParityIn,
    kind: type[planted.Engine],
    precision: str,
    where: tuple[int, str, str],
) -> None:
    """At the operand that is wrong, or the gradient that it makes wrong."""
    candidate = partial(planted.planted_quantized, kind=kind)
    with pytest.raises(ParityError) as failure:
        parity_in(Cell(precision, sequence="train2", world_size=2)).check(
            candidate, layouts.adamw, workload=workloads.mlp
        )
    found = failure.value.verdict.divergence
    assert found is not None
    assert (found.step, found.phase, found.kind) == where


def test_a_quantized_cell_without_a_quantized_forward_is_vacuous(parity_in: ParityIn) -> None:
    """Though both sides agree bit for bit."""
    with pytest.raises(ParityError, match="vacuous: nothing was quantized") as failure:
        parity_in(Cell("mxfp8", sequence="train2")).check(
            planted.unquantized, planted.unquantized_again, workload=workloads.mlp
        )
    assert failure.value.verdict.outcome == "vacuous"


@pytest.mark.parametrize(
    ("kind", "precision", "name"),
    [
        (RoundsBeforeAccumulating, "nvfp4", "microbatch 0: blocks.0.linear.weight"),
        (planted.ForgetsAMicrobatch, "bf16", "microbatch 3: blocks.1.linear.bias"),
    ],
)
def test_the_first_wrong_microbatch_is_named(
    parity_in: ParityIn, kind: type[planted.MainGradEngine], precision: str, name: str
) -> None:
    """That of fp32 sums of rounded gradients, which are not those of exact ones; and the last."""
    candidate = partial(planted.planted_main_grad, kind=kind)
    with pytest.raises(ParityError) as failure:
        parity_in(Cell(precision, "bf16", True, sequence="train2")).check(
            candidate, layouts.master_adamw, workload=workloads.mlp
        )
    found = failure.value.verdict.divergence
    assert found is not None
    assert (found.step, found.kind, found.name) == (1, "grad", name)


def test_clipping_scaled_gradients_is_found(parity_in: ParityIn) -> None:
    """Their norm is too large by the scale of the loss."""
    candidate = partial(planted.planted_quantized, kind=planted.ClipsScaled)
    with pytest.raises(ParityError) as failure:
        parity_in(Cell("fp16", "fp32", sequence="train2")).check(
            candidate, layouts.adamw, workload=workloads.mlp
        )
    found = failure.value.verdict.divergence
    assert found is not None
    assert (found.step, found.kind) == (1, "grad_norm")
