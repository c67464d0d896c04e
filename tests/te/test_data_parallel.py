"""Transformer Engine's layers in torch's wrappers: DDP and FSDP2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pytest
import te_wheel
from planted_te import OneMicrobatch

from pytest_precision import Cell, Parity, ParityError, layouts, norm, unchecked, workloads
from pytest_precision.parity.compare.criterion import Criterion

pytestmark = [pytest.mark.slow, te_wheel.NEEDED]

ParityIn = Callable[[Cell], Parity]

MLP = partial(workloads.mlp, width=64, depth=1)
GPT = partial(workloads.gpt, heads=2, head_width=16, depth=1, fixed_temperature=True)

SHARDED = partial(layouts.te_linears, fsdp2=True)
REPLICATED = partial(layouts.te_linears, ddp=True)


CAST_IN_FP32 = unchecked(reason="FusedAdam quantizes masters that are not rounded to bf16 first")
NOT_ROUNDED_FIRST = dict.fromkeys(("quantized", "scale", "amax"), CAST_IN_FP32)


def not_cached(cell: Cell) -> Mapping[str, Criterion]:
    """Leave out what Transformer Engine does not keep of gathered weights."""
    reason = "of gathered weights, nothing is cached"
    return {} if cell.precision == "bf16" else {"used_quantized": unchecked(reason=reason)}


@pytest.mark.parametrize(
    ("precision", "primary"),
    [("fp8_delayed", "quantized"), pytest.param("fp8_block", "bf16", marks=pytest.mark.nightly)],
)
def test_ddp_reduces_what_the_engine_reduces(
    parity_in: ParityIn, precision: str, primary: str
) -> None:
    """Two gradients have one sum, so DDP has the same bits on two ranks."""
    cell = Cell(precision, primary, sequence="train2-eval-save-load-train1", world_size=2)
    replicated = partial(layouts.te_linears, masters_in_optimizer=True)
    parity_in(cell).check(REPLICATED, replicated, workload=MLP)


@pytest.mark.parametrize("precision", [pytest.param("bf16", marks=pytest.mark.nightly), "mxfp8"])
def test_fully_shard_reduces_what_ddp_reduces(parity_in: ParityIn, precision: str) -> None:
    """The shards of two ranks are the weights of DDP, before and after a checkpoint."""
    cell = Cell(precision, "bf16", sequence="train2-eval-save-load-train1", world_size=2)
    parity_in(cell).check(SHARDED, REPLICATED, workload=MLP, criterion=not_cached(cell))


@pytest.mark.parametrize(
    ("precision", "width"),
    [
        ("fp8_delayed", 64),
        pytest.param("fp8_current", 64, marks=pytest.mark.nightly),
        ("mxfp8", 256),
        pytest.param("fp8_block", 256, marks=pytest.mark.nightly),
    ],
)
def test_shards_are_quantized_as_the_whole_weight(
    parity_in: ParityIn, precision: str, width: int
) -> None:
    """Their bytes and scales are those of DDP, and masters are not made of quantized weights."""
    cell = Cell(precision, "quantized", sequence="train1-eval-save-load-train1", world_size=2)
    of_own_rows = unchecked(reason="each rank records the amax of its rows")
    # The layers keep the same history, of the rank, in attributes of theirs.
    own = {"recorded_amax": of_own_rows, "attribute:*amax*": of_own_rows}
    criterion = own if precision == "fp8_delayed" else None
    workload = partial(workloads.mlp, width=width, depth=1)
    parity_in(cell).check(
        SHARDED, REPLICATED, workload=workload, criterion=criterion, oracle=NOT_ROUNDED_FIRST
    )


def test_layers_quantize_their_shards_as_the_whole_weights(parity_in: ParityIn) -> None:
    """Those of NVFP4 by the amax of all ranks; what is frozen stays so."""
    cell = Cell("nvfp4", "quantized", sequence="train1-eval", world_size=2)
    sides = partial(layouts.te_blocks, fsdp2=True), partial(layouts.te_blocks, ddp=True)
    workload = partial(GPT, heads=2, head_width=128)
    parity_in(cell).check(*sides, workload=workload, oracle=NOT_ROUNDED_FIRST)


def test_fully_shard_on_three_ranks_sums_in_another_order(parity_in: ParityIn) -> None:
    """Nothing differs before the sum of three gradients in bf16, and after it what rounding does.

    The shards are uneven.
    """
    after = ("grad_norm", "exp_avg", "exp_avg_sq", "master_param", "master", "param")
    rounded = {"reduced_grad": norm(rel=2**-7)} | dict.fromkeys(after, norm(rel=2**-6))
    cell = Cell("nvfp4", "bf16", sequence="train1", world_size=3)
    parity_in(cell).check(
        partial(layouts.te_blocks, fsdp2=True, layer="LayerNormMLP"),
        partial(layouts.te_blocks, ddp=True, layer="LayerNormMLP"),
        workload=GPT,
        criterion={**not_cached(cell), **rounded},
    )


def test_fully_shard_quantizes_weights_again_in_backward(parity_in: ParityIn) -> None:
    """In delayed scaling that is by the scales of the next step: see docs/evidence/findings.md."""
    cell = Cell("fp8_delayed", "bf16", sequence="train1", world_size=2)
    workload = partial(OneMicrobatch, width=64, depth=1)
    said = "reduced_grad differs at step 1 .*; used_param, decision, loss agreed"
    with pytest.raises(ParityError, match=said):
        parity_in(cell).check(SHARDED, REPLICATED, workload=workload, criterion=not_cached(cell))


@pytest.mark.parametrize(
    ("cell", "options", "message"),
    [
        (Cell("bf16", "bf16", grad_accum_fusion=True), {}, "gradients that fully_shard can reduce"),
        (Cell("mxfp8", "quantized"), {}, r"multiples of 128, but got .* 64 x 64 with world_size=1"),
        (Cell("bf16", "bf16"), {"ddp": True}, "expected ddp or fsdp2 but got both"),
    ],
)
def test_what_fully_shard_cannot_do_is_refused(
    parity_in: ParityIn, cell: Cell, options: dict[str, bool], message: str
) -> None:
    """Before anything is trained, with what to use instead."""
    with pytest.raises(ParityError, match=message):
        parity_in(cell).check(partial(SHARDED, **options), layouts.te_linears, workload=MLP)
