"""Transformer Engine's own Python layer on ranks, over the stand-in for its kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import in_this_process  # noqa: F401
import planted_te as planted
import pytest
import te_wheel

from pytest_precision import Cell, Parity, ParityError, layouts, workloads

pytestmark = [pytest.mark.slow, te_wheel.NEEDED]

ParityIn = Callable[[Cell], Parity]

MOE = partial(workloads.moe, experts=3, depth=1, width=32, hidden=64)
SINGLE = partial(layouts.te_experts, single_grouped_weight=True)
EVERYTHING = "train1-skip-save-load-eval-train1"

STORED = [
    ("bf16", "bf16"),
    ("fp8_current", "bf16"),
    ("fp8_current", "quantized"),
    ("mxfp8", "bf16"),
    ("mxfp8", "quantized"),
    ("nvfp4", "bf16"),
    ("nvfp4", "quantized"),
]
IN_CI = [
    ("fp8_current", "quantized", False),
    ("mxfp8", "bf16", True),
]
EXPERTS = [
    pytest.param(
        *stored,
        fusion,
        # Without fusion, CI runs the others in Megatron-core's own experts (fixtures/megatron).
        # With it, NVFP4 is on two ranks below, and block scaling has quantized weights.
        marks=() if (*stored, fusion) in IN_CI else pytest.mark.nightly,
    )
    for stored in STORED
    for fusion in (False, True)
]


def test_quantizers_give_the_golden_vectors(on_a_rank: Callable[..., dict[str, list[str]]]) -> None:
    """Each of Transformer Engine's quantizers has the bytes, scales and amaxes of its format."""
    found = on_a_rank(planted.differing_from_golden)
    assert len(found) == 12
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_what_is_not_computed_says_its_name(on_a_rank: Callable[..., list[str]]) -> None:
    """A function without arithmetic raises with its name and the release; others do not exist."""
    *said, has_plugin = on_a_rank(planted.refused_names)
    assert len(said) == 3
    assert "Transformer Engine 2.20 but got transformer_engine_torch.fused_attn_fwd" in said[0]
    assert has_plugin == "False"


def test_a_part_of_a_block_is_refused_as_the_kernels_refuse_it(
    on_a_rank: Callable[..., list[str]],
) -> None:
    """Sequence parallelism gives a rank a part of the rows, which may be half a block."""
    *of_mxfp8, of_nvfp4 = on_a_rank(planted.parts_of_blocks)
    assert len(of_mxfp8) == 2
    assert (
        "MXFP8Quantizer whose rows and columns are multiples of 32 but got 16 x 64" in of_mxfp8[0]
    )
    assert "but got 32 x 48" in of_mxfp8[1]
    assert "NVFP4Quantizer whose rows and columns are multiples of 16 but got 8 x 16" in of_nvfp4


def test_fused_adam_keeps_remainders_of_quantized_weights(
    on_a_rank: Callable[..., tuple[str, bool]],
) -> None:
    """Their dtype says bf16, so 16 bits are given to the kernel as if they were fp32 weights."""
    assert on_a_rank(planted.remainders_of_bytes) == ("torch.int16", False)


def test_what_is_gathered_together_is_gathered_apart(
    on_a_rank: Callable[..., list[list[float]]],
) -> None:
    """Each is gathered by itself before the block ends; gloo mixes up bf16 after bytes."""
    assert on_a_rank(planted.gathered_together) == [[10.0] * 4, [1.0] * 6, [10.0] * 4, [1.0] * 6]


def test_nvfp4_takes_batches_of_one_and_three(on_a_rank: Callable[..., list[bool]]) -> None:
    """A quantized batch is the quantized matrix, although its last but one dimension is odd."""
    assert on_a_rank(planted.odd_batches) == [True, True]


def test_nvfp4_transforms_without_signs(on_a_rank: Callable[..., list[bool]]) -> None:
    """The signs of the Hadamard transform are the quantizer's choice, which rows do not have."""
    assert on_a_rank(planted.transformed_without_signs) == [True, True]


def test_reset_parameters_trains_what_was_frozen(on_a_rank: Callable[..., list[bool]]) -> None:
    """It makes new parameters, the weight of a norm among them."""
    assert on_a_rank(planted.frozen_and_reset) == [True, True]


def test_fsdp2_shards_quantized_weights_in_two_recipes(
    on_a_rank: Callable[..., dict[str, str]],
) -> None:
    """Scales of MXFP8 are copied without their padding; on one rank, torch gathers no scales."""
    failed = on_a_rank(planted.not_sharded_by_fsdp2)
    assert {name for name in failed if "mxfp8" not in name} == {
        f"{precision} {width}" for precision in ("fp8_block", "nvfp4") for width in (64, 128)
    }
    assert {failed.pop(name) for name in [*failed] if "mxfp8" not in name} == {"dequantized"}
    assert "must match the size of tensor" in failed["mxfp8 64"]
    assert "not enough values to unpack" in failed["mxfp8 128"]


@pytest.mark.parametrize(("precision", "primary", "fusion"), EXPERTS)
def test_single_grouped_weight_is_discrete_weights(
    parity_in: ParityIn, precision: str, primary: str, fusion: bool
) -> None:
    """One parameter for all experts is a parameter for each, through eval, skip, save and load."""
    cell = Cell(precision, primary, grad_accum_fusion=fusion, sequence=EVERYTHING)
    verdict = parity_in(cell).check(SINGLE, layouts.te_experts, workload=MOE)
    assert verdict.observations > 500


@pytest.mark.parametrize(
    ("precision", "primary"),
    [
        pytest.param("bf16", "bf16", marks=pytest.mark.nightly),
        # In CI, `test_sequences.py` has MXFP8 on three ranks.
        pytest.param("mxfp8", "quantized", marks=pytest.mark.nightly),
        ("nvfp4", "bf16"),
    ],
)
def test_single_grouped_weight_is_discrete_weights_on_two_ranks(
    parity_in: ParityIn, precision: str, primary: str
) -> None:
    """Likewise where gradients are reduced, and where training goes on in new processes."""
    sequence = "train1-save-restart-train1"
    cell = Cell(precision, primary, grad_accum_fusion=True, sequence=sequence, world_size=2)
    parity_in(cell).check(SINGLE, layouts.te_experts, workload=MOE)


# In CI, bf16 weights are one in MXFP8 above.
@pytest.mark.parametrize("primary", [pytest.param("bf16", marks=pytest.mark.nightly), "quantized"])
def test_single_grouped_weight_in_block_scaling_needs_hopper(
    parity_in: ParityIn, primary: str
) -> None:
    """There it is discrete weights; on 10.0 Transformer Engine has no kernels for it."""
    cell = Cell("fp8_block", primary, grad_accum_fusion=True, sequence=EVERYTHING)
    one, each = (
        partial(planted.experts_on_hopper, single_grouped_weight=single) for single in (True, False)
    )
    parity_in(cell).check(one, each, workload=MOE)
    with pytest.raises(pytest.skip.Exception, match=r"works on 9\.0 alone"):
        parity_in(cell.replace(sequence="train1")).check(SINGLE, layouts.te_experts, workload=MOE)


def test_single_grouped_weight_in_delayed_scaling_is_refused(parity_in: ParityIn) -> None:
    """By Transformer Engine, whose grouped tensors have no delayed scaling."""
    with pytest.raises(ParityError, match="Single grouped parameters require the native grouped"):
        parity_in(Cell("fp8_delayed")).check(SINGLE, layouts.te_experts, workload=MOE)


def test_transformer_engine_loads_another_single_weight_than_it_saved(parity_in: ParityIn) -> None:
    """Of MXFP8, other bytes are loaded than were saved; the layout stores its masters again."""
    cell = Cell("mxfp8", "quantized", grad_accum_fusion=True, sequence="train1-save-load-train1")
    candidate = partial(planted.planted, kind=planted.AsLoaded)
    with pytest.raises(ParityError, match="load") as failure:
        parity_in(cell).check(candidate, SINGLE, workload=MOE)
    found = failure.value.verdict.divergence
    assert found is not None, failure.value
    assert (found.phase, found.kind) == ("load", "quantized")


@pytest.mark.parametrize(
    ("kind", "primary", "where"),
    [
        (planted.StaleCache, "bf16", (1, "used_quantized")),
        (planted.AddsAfterEval, "quantized", (2, "grad")),
        (planted.DequantizedMasters, "quantized", (0, "master")),
        (planted.NeverRead, "quantized", (1, "quantized")),
    ],
)
def test_a_defect_in_real_code_is_red(
    parity_in: ParityIn, kind: type[planted.OutsideMasters], primary: str, where: tuple[int, str]
) -> None:
    """It is found at the step and the kind where it first shows."""
    cell = Cell("mxfp8", primary, grad_accum_fusion=True, sequence="train1-eval-train1")
    candidate = partial(planted.planted, kind=kind)
    with pytest.raises(ParityError) as failure:
        parity_in(cell).check(candidate, SINGLE, workload=MOE)
    found = failure.value.verdict.divergence
    assert found is not None, failure.value
    assert (found.step, found.kind) == where


def test_a_stand_in_that_is_preloaded_is_there_before_a_function_is_called(
    pytester: pytest.Pytester,
) -> None:
    """Such ranks run what declares that it uses Transformer Engine, and nothing has changed."""
    pytester.makepyfile(
        test_a="""
        import sys
        import pytest
        from pytest_precision import layouts

        BEFORE = "transformer_engine" in sys.modules

        @layouts.uses_transformer_engine
        def installed():
            import torch
            return BEFORE, torch.zeros(1).device.type

        @pytest.mark.world_size(2)
        def test_a(ranks):
            assert ranks.run(installed) == [(True, "cuda")] * 2
        """
    )
    pytester.makeini("[pytest]\nprecision_preload = pytest_precision.te.on_ranks")
    result = pytester.runpytest_inprocess("-W", "error")
    result.assert_outcomes(passed=1)
