"""The distributed optimizer is replicated training with masters, stored and moved otherwise."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_precision import Cell, Engine, Parity, ParityError, Span, Workload, layouts, workloads
from pytest_precision.layouts.megatron.optimizer_engine import DistributedOptimizer

ParityIn = Callable[[Cell], Parity]

EVERYTHING = "train-save-load-eval-skip-train-swap-train"
"""Each operation once, and a step of training after each that changes an engine."""

MOE = partial(workloads.moe, experts=3, depth=1)
GPT = partial(workloads.gpt, heads=2, depth=1)

REPLICATED = partial(layouts.master_adamw, main_grad=True)
"""Gradients in fp32 main_grad buffers, whole masters on every rank: the reference."""

NIGHTLY = pytest.mark.nightly

alone_every_night_and_on_two_ranks = pytest.mark.parametrize(
    "world_size", [pytest.param(1, marks=NIGHTLY), 2]
)


@alone_every_night_and_on_two_ranks
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_it_agrees_with_replicated_training(
    parity_in: ParityIn, precision: str, world_size: int
) -> None:
    """Bit for bit through every operation, checkpoints of the other layout included."""
    cell = Cell(precision, sequence=EVERYTHING, world_size=world_size)
    reference = layouts.adamw if precision == "fp32" else REPLICATED
    verdict = parity_in(cell).check(layouts.distributed_optimizer, reference, workload=GPT)
    assert verdict.observations > 500


def test_buffers_and_what_is_frozen_survive_checkpoints_of_both(parity_in: ParityIn) -> None:
    """A frozen parameter has no master in either; a counter is another on each rank."""
    cell = Cell("bf16", sequence="train-save-load-swap-train", world_size=2)
    parity_in(cell).check(layouts.distributed_optimizer, REPLICATED, workload=MOE)


@alone_every_night_and_on_two_ranks
def test_fp16_agrees_with_replicated_training(parity_in: ParityIn, world_size: int) -> None:
    """Under a loss scale that doubles, halves where a step is skipped, and is in checkpoints."""
    sequence = "train4-save-load-eval-skip-train-swap-train"
    cell = Cell("fp16", sequence=sequence, world_size=world_size)
    parity_in(cell).check(layouts.distributed_optimizer, REPLICATED, workload=GPT)


# By day, four ranks agree in test_world_sizes.py, and three in test_quantize.py.
@pytest.mark.nightly
def test_three_ranks_agree_where_sums_are_exact(parity_in: ParityIn) -> None:
    """fp32 sums of a few bf16 gradients nearly all have one value, in whatever order.

    These two steps have no other ones. In the third a single element of all is one unit in the last
    place off: the reference adds in the order of a ring, this layout in that of the ranks.
    """
    cell = Cell("bf16", sequence="train2-eval", world_size=3)
    parity_in(cell).check(layouts.distributed_optimizer, REPLICATED, workload=MOE)


# In CI, test_quantize.py has delayed scaling and compares the casts of the others, and
# test_partly_trained.py has MXFP8.
@pytest.mark.nightly
@pytest.mark.parametrize("primary_weight", ["bf16", "quantized"])
@pytest.mark.parametrize("precision", ["fp8_delayed", "fp8_current", "fp8_block", "mxfp8", "nvfp4"])
def test_quantized_precisions_agree_on_two_ranks(
    parity_in: ParityIn, precision: str, primary_weight: str
) -> None:
    """Cells whose weight gradients are added by the GEMM, in fp32."""
    fused = precision in ("mxfp8", "nvfp4")
    cell = Cell(precision, primary_weight, fused, sequence="train-eval-train", world_size=2)
    parity_in(cell).check(layouts.distributed_optimizer, REPLICATED, workload=MOE)


@pytest.mark.parametrize(
    "options",
    [
        # And `test_moments_in_bf16` compares sizes of buckets.
        *(pytest.param({"bucket_size": size}, marks=NIGHTLY) for size in (1, 10**9)),
        # CI has both at once.
        pytest.param({"overlap_grad_reduce": True}, marks=NIGHTLY),
        pytest.param({"overlap_param_gather": True}, marks=NIGHTLY),
        {"overlap_grad_reduce": True, "overlap_param_gather": True},
    ],
    ids="-".join,
)
def test_buckets_and_overlap_change_no_bit(parity_in: ParityIn, options: dict[str, object]) -> None:
    """Of what can be observed: overlapped gradients and parameters are seen where they are used."""
    cell = Cell("bf16", sequence="train2-save-load-eval-train", world_size=3)
    parity_in(cell).check(
        partial(layouts.distributed_optimizer, **options),
        layouts.distributed_optimizer,
        workload=GPT,
    )


# In CI, on three ranks with overlap and without experts.
@pytest.mark.parametrize(
    ("world_size", "overlap", "workload"),
    [
        (3, True, workloads.mlp),
        *(
            pytest.param(ranks, overlap, MOE, marks=NIGHTLY, id=f"{ranks}-{overlap}-moe")
            for ranks in (1, 3)
            for overlap in (False, True)
        ),
    ],
)
def test_the_gradients_memory_serves_the_gather_too(
    parity_in: ParityIn, world_size: int, overlap: bool, workload: Callable[..., Workload]
) -> None:
    """And is clean again whenever gradients are accumulated there."""
    cell = Cell("mxfp8", "quantized", True, "train2-save-load-eval-train", world_size)
    shared = partial(
        layouts.distributed_optimizer,
        reuse_grad_buffer_for_param_gather=True,
        overlap_param_gather=overlap,
        overlap_grad_reduce=overlap,
    )
    parity_in(cell).check(shared, layouts.distributed_optimizer, workload=workload)


def test_gradients_in_bf16(parity_in: ParityIn) -> None:
    """With main gradients in bf16 it is AdamW on masters."""
    cell = Cell("bf16", sequence="train-eval-train", world_size=2)
    parity_in(cell).check(
        partial(layouts.distributed_optimizer, main_grads_dtype="bf16"),
        layouts.master_adamw,
        workload=GPT,
    )


def test_moments_in_bf16(parity_in: ParityIn) -> None:
    """Precision-aware moments are those of FusedAdam, wherever a shard is cut."""
    cell = Cell("bf16", sequence="train-save-load-train", world_size=2)
    low = {"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}
    parity_in(cell).check(
        partial(layouts.distributed_optimizer, **low),
        partial(layouts.distributed_optimizer, **low, bucket_size=1),
        workload=GPT,
    )


@alone_every_night_and_on_two_ranks
# In CI, lost remainders below are beside moments in fp32.
@pytest.mark.parametrize("moments", [pytest.param("fp32", marks=NIGHTLY), "bf16"])
def test_remainders(parity_in: ParityIn, moments: str, world_size: int) -> None:
    """Updated where they are gathered, bf16 shards and their remainders are FusedAdam's."""
    sequence = "train-save-load-eval-train-swap-train"
    cell = Cell("bf16", sequence=sequence, world_size=world_size)
    options = {
        "store_param_remainders": True,
        "exp_avg_dtype": moments,
        "exp_avg_sq_dtype": moments,
    }
    verdict = parity_in(cell).check(
        partial(layouts.distributed_optimizer, **options, main_grads_dtype="bf16", bucket_size=1),
        partial(layouts.fused_adam, **options),
        workload=GPT,
    )
    assert verdict.observations > 500


class LosesRemainders(DistributedOptimizer):
    """A load takes over the parameters and the moments only."""

    def load(self, folder: Path) -> None:
        super().load(folder)
        for kept in self.optimizer.state.values():
            kept["master_param"].zero_()


def losing_remainders(workload: Workload, cell: Cell, **options: object) -> Engine:
    """`distributed_optimizer` with that defect."""
    return LosesRemainders.of(workload, cell, **options)


def test_lost_remainders_are_caught(parity_there: ParityIn) -> None:
    """In the masters, where they are lost: the parameters are right."""
    cell = Cell("bf16", sequence="train-save-load-train")
    with pytest.raises(ParityError, match="master_param differs after load, which follows step 1"):
        parity_there(cell).check(
            partial(losing_remainders, store_param_remainders=True),
            partial(layouts.distributed_optimizer, store_param_remainders=True),
            workload=GPT,
        )


FP16_MOMENTS = {"exp_avg_dtype": "fp16", "exp_avg_sq_dtype": "fp16"}
FP8_MOMENTS = {"exp_avg_dtype": "fp8", "exp_avg_sq_dtype": "fp8"}
SCALED_BESIDE_PARAMETERS = [
    {**FP16_MOMENTS, "store_param_remainders": True},
    {**FP8_MOMENTS, "store_param_remainders": True},
    {"main_params_dtype": "fp16"},
    {**FP8_MOMENTS, "main_params_dtype": "fp16"},
]
"""State with a scale of an optimizer that updates the parameters."""


# In CI, each dtype and each kind of masters is in one of the others.
@pytest.mark.parametrize(
    "options",
    [
        # And remainders of FusedAdam are in `test_remainders`.
        *(pytest.param(options, marks=NIGHTLY) for options in SCALED_BESIDE_PARAMETERS[:3]),
        SCALED_BESIDE_PARAMETERS[3],
    ],
)
def test_scaled_state_is_that_of_fused_adam(parity_in: ParityIn, options: dict[str, str]) -> None:
    """On one rank, which has whole tensors; checkpoints of the other layout included."""
    cell = Cell("bf16", sequence=EVERYTHING)
    replicated = {
        "master_weight_dtype" if name == "main_params_dtype" else name: value
        for name, value in options.items()
    }
    verdict = parity_in(cell).check(
        partial(layouts.distributed_optimizer, **options, main_grads_dtype="bf16"),
        partial(layouts.fused_adam, **replicated),
        workload=GPT,
    )
    assert verdict.observations > 500


# In CI, test_checkpoint.py loads scaled shards, and test_experts.py has them with overlap.
@pytest.mark.nightly
@pytest.mark.parametrize("options", [FP16_MOMENTS, FP8_MOMENTS, *SCALED_BESIDE_PARAMETERS])
def test_scaled_shards_survive_every_operation(
    parity_in: ParityIn, options: dict[str, str]
) -> None:
    """Bit for bit, and overlap changes none of them."""
    cell = Cell("bf16", sequence=EVERYTHING, world_size=2)
    parity_in(cell).check(
        partial(
            layouts.distributed_optimizer,
            **options,
            overlap_grad_reduce=True,
            overlap_param_gather=True,
        ),
        partial(layouts.distributed_optimizer, **options),
        workload=GPT,
    )


class Unrounded(workloads.mlp):
    """Weights that bf16 does not hold."""

    def model(self, cell: Cell) -> nn.Module:
        model = super().model(cell)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + 2.0**-11)
        return model


@pytest.mark.parametrize("primary_weight", ["bf16", "quantized"])
def test_masters_start_unrounded(parity_in: ParityIn, primary_weight: str) -> None:
    """As the masters of the replicated layout, however the parameters are stored."""
    cell = Cell("mxfp8", primary_weight, sequence="train", world_size=2)
    parity_in(cell).check(layouts.distributed_optimizer, REPLICATED, workload=Unrounded)


class NormOfBuffers(DistributedOptimizer):
    """The norm of all that lies in its part of the buffers, padding included."""

    def total_norm(self, gradients: list[Tensor]) -> Tensor:
        flat = torch.cat([buffer.grads for buffer in self.buffers])
        return flat.double().square().sum().sqrt()


def norm_of_buffers(workload: Workload, cell: Cell) -> Engine:
    """`distributed_optimizer` with that defect."""
    return NormOfBuffers.of(workload, cell)


def test_a_norm_that_reads_padding_is_caught(parity_there: ParityIn) -> None:
    """Zeros there would have let it pass."""
    with pytest.raises(ParityError, match="grad_norm differs at step 1"):
        parity_there(Cell("bf16", sequence="train")).check(
            norm_of_buffers, layouts.distributed_optimizer, workload=workloads.mlp
        )


class LosesHistory(DistributedOptimizer):
    """A load leaves the scales and histories of delayed scaling as a new model has them."""

    def load(self, folder: Path) -> None:
        kept = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        super().load(folder)
        for name, buffer in self.model.named_buffers():
            buffer.copy_(kept[name])


def losing_history(workload: Workload, cell: Cell, **options: object) -> Engine:
    """`distributed_optimizer` with that defect."""
    return LosesHistory.of(workload, cell, **options)


def test_overlap_does_not_hide_delayed_scaling(parity_there: ParityIn) -> None:
    """What is late is parameters; scales of inputs are as they are after every phase."""
    overlapped = {"overlap_param_gather": True}
    with pytest.raises(ParityError, match="differs after load, which follows step 1"):
        parity_there(Cell("fp8_delayed", "bf16", sequence="train-save-load-train")).check(
            partial(losing_history, **overlapped),
            partial(layouts.distributed_optimizer, **overlapped),
            workload=workloads.mlp,
        )


def test_two_ranks_agree_with_one(parity_in: ParityIn) -> None:
    """Shards of every rank make the whole, whatever the world size."""
    cell = Cell("bf16", sequence="train2", world_size=2)
    parity_in(cell).check(
        layouts.distributed_optimizer,
        layouts.distributed_optimizer,
        workload=GPT,
        reference_cell=cell.replace(world_size=1),
    )


@pytest.mark.parametrize(
    ("options", "axes", "words"),
    [
        ({"bucket_size": 0}, {}, "a whole number of elements from 1 but got bucket_size=0"),
        ({"main_grads_dtype": "fp8"}, {}, "main_grads_dtype to be one of fp32, bf16 but got"),
        ({"reuse_grad_buffer_for_param_gather": True}, {}, "expected quantized mxfp8 primary"),
        ({"store_param_remainders": True}, {"precision": "fp32"}, "expected bf16 primary weights"),
        ({"exp_avg_dtype": "fp4"}, {}, "exp_avg_dtype to be one of fp32, bf16, fp16, fp8 but got"),
        ({"overlap_grad_reduce": "no"}, {}, "expected a bool but got overlap_grad_reduce='no'"),
        (
            {"main_grads_dtype": "bf16"},
            {"grad_accum_fusion": True},
            "expected fp32 gradients, which is what GEMMs add to",
        ),
        ({"main_params_dtype": "bf16"}, {}, "main_params_dtype to be one of fp32, fp16 but got"),
        (
            {"main_params_dtype": "fp16"},
            {"precision": "mxfp8", "primary_weight": "quantized"},
            "primary weights of 16 bits, which the optimizer updates itself",
        ),
        (
            {"main_params_dtype": "fp16", "store_param_remainders": True},
            {},
            "upper halves of fp32 masters",
        ),
        ({}, {"primary_weight": "fp32"}, "knows primary_weight bf16 in bf16"),
    ],
)
def test_what_it_cannot_do_it_refuses(
    parity_in: ParityIn, options: dict[str, object], axes: dict[str, str], words: str
) -> None:
    """A cell must not pass by running something else than it says."""
    cell = Cell(**{"precision": "bf16", **axes})  # type: ignore[arg-type]
    with pytest.raises(ParityError, match=words):
        parity_in(cell).check(
            partial(layouts.distributed_optimizer, **options),
            layouts.adamw,
            workload=workloads.mlp,
            reference_cell=Cell(),
        )


def made(world_size: int) -> DistributedOptimizer:
    """On a rank: an engine of the smallest workload."""
    engine = layouts.distributed_optimizer(workloads.mlp(), Cell("bf16", world_size=world_size))
    assert isinstance(engine, DistributedOptimizer)
    return engine


def spans() -> list[tuple[str, Span, int]]:
    """On a rank: which elements of which parameter it updates."""
    return [(s.name, s.owned, s.slot.parameter.numel()) for s in made(3).shards]


def test_shards_cut_across_parameters(run_on_ranks: Callable[..., list[Any]]) -> None:
    """Every element is updated by one rank; some parameters are cut and some are elsewhere."""
    ranks = run_on_ranks(3, spans)
    sizes = {name: numel for held in ranks for name, _, numel in held}
    pieces = [(name, span) for held in ranks for name, span, _ in held]
    assert sum(span.stop - span.start for _, span in pieces) == sum(sizes.values())
    assert len(pieces) > len(sizes)
    assert any({name for name, _, _ in held} != set(sizes) for held in ranks)


def padding() -> tuple[bool, int]:
    """On a rank: whether all padding is NaN, and how many elements that are."""
    (buffer,) = made(2).buffers
    pads = torch.ones_like(buffer.params, dtype=torch.bool)
    for slot in buffer.slots:
        pads[slot.span.start : slot.span.stop] = False
    return bool(buffer.params[pads].isnan().all()), int(pads.sum())


def test_padding_is_poison(run_on_ranks: Callable[..., list[Any]]) -> None:
    """Whoever reads behind a parameter finds NaN, and zeros would be lost in a sum."""
    for poisoned, number in run_on_ranks(2, padding):
        assert poisoned
        assert number > 0
