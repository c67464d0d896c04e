"""A run that contradicts itself fails, also where both sides agree."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import contradictions
import pytest
from package_probes import OF_ENGINES

from pytest_precision import (
    Cell,
    Engine,
    Parity,
    ParityError,
    Workload,
    layouts,
    unchecked,
    workloads,
)
from pytest_precision.parity.exempt import Exempt
from pytest_precision.probes.declared_rule.oracle_log import OracleLog
from pytest_precision.probes.identities.consistency import FROZEN, Consistency
from pytest_precision.recorders.engine_recorder import record_engine
from pytest_precision.recorders.layout_job import LayoutJob
from pytest_precision.trace.moment import EVERYTHING
from pytest_precision.trace.recording import Recording

ParityIn = Callable[[Cell], Parity]
Found = Callable[..., Consistency]

FP32 = Cell(sequence="train2")
BF16 = Cell("bf16", "bf16", sequence="train2")
FP16 = Cell("fp16", "fp32", sequence="train-skip-train4")
MXFP8 = Cell("mxfp8", "bf16", sequence="train2")
USED = {"used_param is the param before it"}
NORM = {"grad_norm is the norm of reduced_grad"}
SCALED = {"loss_scale is what its rule makes of it"}
DELAYED = Cell("fp8_delayed", "bf16", sequence="train2")
RESIDENT_DELAYED = Cell("fp8_delayed", "quantized", sequence="train2")
MANY = "train-eval-train-save-load-train2"
SCALES = {
    "scale is that of the largest amax of its history",
    "amax is the history before it, rolled, and the largest amax since",
}
UNROUNDED = {"master is not rounded since the update before"}
RESIDENT_MXFP8 = Cell("mxfp8", "quantized", sequence="train2")

MLP = partial(workloads.mlp, width=33)
"""Of which one block of 32 numbers is whole, and one is not."""
GPT = partial(workloads.gpt, heads=3, depth=1)
MOE = partial(workloads.moe, experts=3, depth=1)
SMALL = partial(workloads.mlp, width=33, depth=1)


@pytest.fixture
def found(one_rank: None, tmp_path: Path) -> Found:
    """What the identities say of a layout that is run in this process."""

    def look(
        layout: Callable[..., Engine], cell: Cell, workload: Callable[..., Workload]
    ) -> Consistency:
        segment = cell.segments[0]
        job = LayoutJob(layout, layout, workload, cell, tmp_path, segment, EVERYTHING)
        record_engine(job._replace(probes=OF_ENGINES))
        side = Recording.read("candidate", cell, tmp_path, EVERYTHING)
        return Consistency.of(side, side.log(OracleLog), Exempt())

    return look


@pytest.mark.parametrize("kind", [contradictions.ReadBack, contradictions.ReadBackLate])
def test_masters_that_are_read_back_fail(parity_there: ParityIn, kind: type[Engine]) -> None:
    """Each update by itself is right; what it starts from was rounded since the one before."""
    sides = (
        partial(side, kind=kind)
        for side in (contradictions.on_masters, contradictions.on_masters_too)
    )
    with pytest.raises(ParityError) as failure:
        parity_there(BF16).check(*sides, workload=SMALL)
    first = str(failure.value).splitlines()[0]
    assert "at step 2 is not what the update before has left in both sides: " in first
    assert first.endswith("; it was rounded to bfloat16 in between")


def test_division_after_the_reduction_is_told(parity_in: ParityIn) -> None:
    """One ratio of all tensors may be the tokens of the step; the engine says so, and agrees."""
    here, there = contradictions.here, contradictions.there
    parity, kind = parity_in(FP32.replace(world_size=2)), contradictions.PerToken
    with pytest.raises(ParityError, match=r"`grad_factor = step_tokens` in the engine") as failure:
        parity.check(partial(here, kind=kind), partial(there, kind=kind), workload=SMALL)
    assert "as in every other tensor" in str(failure.value).splitlines()[0]
    kind = contradictions.SaysSo
    parity.check(partial(here, kind=kind), partial(there, kind=kind), workload=SMALL)


def test_a_contradiction_explains_a_divergence(parity_there: ParityIn) -> None:
    """Where only the candidate contradicts itself, the two differ, and the lines below say why."""
    candidate = partial(contradictions.here, kind=contradictions.HalfTheNorm)
    with pytest.raises(ParityError) as failure:
        parity_there(FP32).check(candidate, layouts.adamw, workload=SMALL)
    verdict = failure.value.verdict
    told = [line for line in verdict.details if "It contradicts itself" in line]
    assert "grad_norm of total at step 1 is not the norm of reduced_grad in the cand" in told[0]
    assert told[0].endswith("0.5 times that")
    assert "breach" in verdict.identities["candidate"]
    assert "breach" not in verdict.identities["reference"]


def test_scales_of_several_ranks_are_left_alone(parity_in: ParityIn) -> None:
    """Their amaxes are those of all ranks, also of an evaluation, and of ranks that restarted."""
    cell = RESIDENT_DELAYED.replace(sequence="train-eval-save-restart-train2", world_size=2)
    verdict = parity_in(cell).check(
        layouts.distributed_optimizer,
        partial(layouts.master_adamw, main_grad=True),
        workload=SMALL,
    )
    for side in ("candidate", "reference"):
        assert verdict.identities[side]["checked"].keys() >= SCALES
        assert "breach" not in verdict.identities[side]


def test_it_is_turned_off_with_the_oracle(parity_there: ParityIn) -> None:
    """A test that wants no judgement without a reference has none."""
    sides = (
        partial(side, kind=contradictions.HalfTheNorm)
        for side in (contradictions.here, contradictions.there)
    )
    verdict = parity_there(FP32).check(
        *sides, workload=SMALL, oracle=unchecked(reason="half the norm is ours")
    )
    assert verdict.identities is None


def test_a_kind_is_turned_off_by_itself(parity_there: ParityIn) -> None:
    """What is wrong with another one is still found."""
    half, meant = contradictions.HalfTheNorm, unchecked(reason="half the norm is ours")
    sides = [partial(side, kind=half) for side in (contradictions.here, contradictions.there)]
    parity, workload = parity_there(FP32), SMALL
    later = {"exp_avg": meant, "exp_avg_sq": meant, "master": meant}  # clipped by that norm
    norm = {"grad_norm": meant, **later}
    assert (
        "breach" not in parity.check(*sides, workload=workload, oracle=norm).identities["candidate"]
    )
    with pytest.raises(ParityError, match="is not the norm of reduced_grad"):
        parity.check(*sides, workload=workload, oracle=later)


def at_night(*values: object) -> Any:
    """Leave a row to the nightly run whose identities another row has looked at, too."""
    return pytest.param(*values, marks=pytest.mark.nightly)


@pytest.mark.parametrize(
    ("layout", "cell", "workload", "checked"),
    [
        (layouts.master_adamw, BF16, GPT, {"param is its master"}),
        (layouts.adamw, Cell("bf16", "fp32", sequence="train2"), MOE, USED),
        (layouts.adamw, FP16, MLP, USED | NORM | SCALED),
        (partial(contradictions.here, kind=contradictions.OwnScale), FP16, MLP, NORM),
        at_night(layouts.fused_adam, FP16.replace(primary_weight="fp16"), GPT, NORM),
        at_night(layouts.distributed_optimizer, FP16.replace(primary_weight="fp16"), MOE, NORM),
        (
            partial(contradictions.here, kind=contradictions.EvaluatesHalf),
            Cell(sequence="train-eval-train"),
            MLP,
            USED,
        ),
        (layouts.any_precision_adamw, BF16, MLP, USED | UNROUNDED),
        (
            partial(contradictions.on_masters, kind=contradictions.Offloads),
            BF16.replace(sequence="train2-eval-save-train"),
            MLP,
            UNROUNDED,
        ),
        (
            partial(layouts.fused_adam, store_param_remainders=True),
            BF16,
            MLP,
            UNROUNDED,
        ),
        (
            partial(contradictions.here, kind=contradictions.AveragesFrozen),
            FP32,
            MLP,
            {f"param is {FROZEN}"},
        ),
        (contradictions.averages_what_its_optimizer_has, FP32, MLP, USED),
        (
            partial(contradictions.here, kind=contradictions.Anneals),
            FP32,
            contradictions.FixedTemperature,
            {f"param is {FROZEN}"},
        ),
        at_night(layouts.fsdp2, Cell("bf16", "fp32", sequence="train2"), GPT, USED),
        (
            layouts.adamw,
            MXFP8,
            MOE,
            {"used_quantized is used_param, quantized"},
        ),
        (
            layouts.master_adamw,
            RESIDENT_MXFP8,
            MLP,
            {"used_quantized is the quantized before it"},
        ),
        (
            layouts.adamw,
            DELAYED.replace(sequence=MANY),
            MLP,
            {"used_quantized is used_param, quantized with the scale before it"} | SCALES,
        ),
        (
            layouts.distributed_optimizer,
            RESIDENT_DELAYED.replace(sequence=MANY),
            MOE,
            {"quantized is its master, quantized with the scale before it"} | SCALES,
        ),
        (
            layouts.distributed_optimizer,
            RESIDENT_MXFP8.replace(sequence=MANY),
            MLP,
            {"quantized is its master, quantized"},
        ),
        (
            partial(
                layouts.distributed_optimizer,
                overlap_param_gather=True,
                reuse_grad_buffer_for_param_gather=True,
            ),
            RESIDENT_MXFP8.replace(grad_accum_fusion=True),
            MLP,
            {
                "reduced_grad is the sum of grad over the ranks",
                "used_quantized is the master before it, quantized",
            },
        ),
        (
            partial(layouts.distributed_optimizer, overlap_param_gather=True),
            Cell("nvfp4", "quantized", sequence=MANY),
            MLP,
            {"used_quantized is the master before it, quantized"},
        ),
    ],
)
def test_what_is_right_is_left_alone(
    found: Found,
    layout: Callable[..., Engine],
    cell: Cell,
    workload: Callable[..., Workload],
    checked: set[str],
) -> None:
    """Rounded to nearest, with a compensation, in bytes; and it was looked at."""
    # The last test: its process group stays, and inline ranks need a process without one.
    consistency = found(layout, cell, workload)
    assert consistency.breach is None
    assert checked <= consistency.checked.keys()
