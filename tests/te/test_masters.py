"""What outlives a step of Transformer Engine's layers: masters, moments, bytes, scales, amaxes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import planted_te as planted
import pytest

from pytest_precision import layouts, workloads
from pytest_precision.check.parity import Parity
from pytest_precision.errors import ParityError
from pytest_precision.matrix.cell import Cell

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("transformer_engine") is None,
        reason="needs Transformer Engine's wheel: pip install 'pytest-precision[te-cpu]'",
    ),
]

ParityIn = Callable[[Cell], Parity]

MLP = partial(workloads.mlp, width=64, depth=1)
SAVED = "train1-save-load-train1"


@pytest.mark.parametrize(
    "options",
    [
        {"store_param_remainders": True},
        {"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"},
        {"exp_avg_dtype": "fp8", "exp_avg_sq_dtype": "fp16"},
        {"exp_avg_dtype": "fp16", "exp_avg_sq_dtype": "fp8", "master_weight_dtype": "fp16"},
    ],
    ids=["remainders", "bf16", "fp8-fp16", "fp16-fp8-fp16"],
)
def test_fused_adam_is_the_emulated_one(parity_in: ParityIn, options: dict[str, str]) -> None:
    """In each form its masters, moments and their scales have the same bits."""
    parity_in(Cell("mxfp8", sequence=SAVED)).check(
        partial(layouts.te_linears, masters_in_optimizer=True, **options),
        partial(layouts.fused_adam, **options),
        workload=MLP,
    )


@pytest.mark.parametrize(
    ("precision", "ranks"),
    [("fp8_delayed", 2), ("fp8_current", 3), ("fp8_block", 2), ("mxfp8", 3), ("nvfp4", 3)],
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
