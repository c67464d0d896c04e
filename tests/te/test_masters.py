"""What outlives a step of Transformer Engine's layers: masters, moments, bytes, scales, amaxes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import planted_te as planted
import pytest
import te_wheel

from pytest_precision import Cell, Parity, ParityError, layouts, unchecked, workloads
from pytest_precision.layouts.transformer_engine.te_masters import OptimizerMasters

pytestmark = [pytest.mark.slow, te_wheel.NEEDED]

ParityIn = Callable[[Cell], Parity]

MLP = partial(workloads.mlp, width=64, depth=1)
SAVED = "train1-save-load-train1"


@pytest.mark.parametrize(
    ("precision", "ranks"),
    [
        # In CI, `test_a_rank_has_no_rows` compares the same two in other precisions.
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in (("fp8_delayed", 2), ("fp8_current", 3), ("fp8_block", 2), ("nvfp4", 3))
        ),
        ("mxfp8", 3),
    ],
)
def test_masters_that_are_cast_by_shards_are_cast_whole(
    parity_in: ParityIn, precision: str, ranks: int
) -> None:
    """`quantize_master_weights` has the bytes, scales and amaxes of a cast of the whole weight."""
    cell = Cell(precision, "quantized", True, "train2", ranks)
    parity_in(cell).check(
        partial(layouts.te_linears, cast_by_shards=True), layouts.te_linears, workload=MLP
    )


@pytest.mark.parametrize(
    ("kind", "stored", "ranks", "where"),
    [
        (planted.KeptHistory, ("fp8_delayed", "bf16"), 1, ("used_quantized", "scaling_fwd.amax")),
        (planted.OwnAmaxes, ("fp8_delayed", "bf16"), 2, ("used_quantized", "scaling_bwd.amax")),
        (planted.WithoutExtraState, ("fp8_delayed", "bf16"), 1, ("scale", "scaling_fwd")),
        (planted.StaleColumns, ("mxfp8", "quantized"), 1, ("quantized", "weight.columnwise")),
        (planted.OwnBytes, ("mxfp8", "quantized"), 2, ("quantized", "weight.rowwise")),
    ],
)
def test_a_defect_in_what_outlives_a_step_is_red(
    parity_in: ParityIn,
    kind: type[planted.OutsideMasters],
    stored: tuple[str, str],
    ranks: int,
    where: tuple[str, str],
) -> None:
    """It is found in the first step, under the kind and the name of what is wrong."""
    cell = Cell(*stored, sequence=SAVED, world_size=ranks)
    candidate = partial(planted.planted_linears, kind=kind)
    with pytest.raises(ParityError) as failure:
        parity_in(cell).check(candidate, layouts.te_linears, workload=MLP)
    found = failure.value.verdict.divergence
    assert found is not None, failure.value
    assert (found.step, found.kind) == (1, where[0])
    assert found.name.endswith(f"blocks.0.linear.{where[1]}")


@pytest.mark.parametrize("precision", ["fp8_delayed", "fp8_current"])
def test_transposed_copies_are_made_anew_where_the_gpu_needs_them(
    parity_in: ParityIn, precision: str
) -> None:
    """A cast of the masters beside the model makes the copy too, and computes the same."""
    cell = Cell(precision, "quantized", sequence="train2")
    parity_in(cell).check(planted.on_hopper, layouts.te_linears, workload=MLP)


def test_fused_adam_leaves_a_stale_transposed_copy_in_delayed_scaling(parity_in: ParityIn) -> None:
    """Transformer Engine's kernel writes the bytes, and the backward reads those before them."""
    cell = Cell("fp8_delayed", "quantized", sequence="train2")
    options = {"masters_in_optimizer": True}
    candidate = partial(planted.on_hopper, **options)
    reference = partial(layouts.te_linears, **options)
    with pytest.raises(ParityError, match=r"columnwise at step 1 is not its rowwise bytes") as red:
        parity_in(cell).check(candidate, reference, workload=MLP)
    found = red.value.verdict.divergence
    assert found is not None, red.value
    assert (found.step, found.kind, found.name) == (
        *(1, "quantized"),
        "blocks.0.linear.weight.columnwise",
    )


def test_fused_adam_quantizes_masters_that_are_not_rounded_first(parity_in: ParityIn) -> None:
    """`quantize_master_weights`, and a weight in bf16 that a forward quantizes, are rounded."""
    cell = Cell("mxfp8", "quantized", sequence="train2")
    own = partial(layouts.te_linears, masters_in_optimizer=True)
    same = partial(planted.planted_linears, kind=OptimizerMasters)
    with pytest.raises(ParityError, match=r"is not its master, quantized in both sides"):
        parity_in(cell).check(own, same, workload=MLP)
    fp32 = "FusedAdam quantizes the masters in fp32"
    left_out = {kind: unchecked(reason=fp32) for kind in ("quantized", "scale")}
    parity_in(cell).check(own, same, workload=MLP, oracle=left_out)
