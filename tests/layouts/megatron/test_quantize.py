"""Quantized parameters made from shards are those that are made of the whole masters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from pytest_precision import (
    Cell,
    Engine,
    Parity,
    ParityError,
    Span,
    Workload,
    formats,
    layouts,
    workloads,
)
from pytest_precision.layouts.megatron.experts import arrange
from pytest_precision.layouts.megatron.optimizer_engine import DistributedOptimizer
from pytest_precision.modules.padding import quantize_padded
from pytest_precision.modules.parameter import tensors_of

ParityIn = Callable[[Cell], Parity]

NIGHTLY = pytest.mark.nightly

MOE = partial(workloads.moe, experts=3, depth=1)

STATELESS = {
    "fp8_current": "fp8_current_e4m3",
    "fp8_block": "fp8_block_128x128_e4m3_pow2",
    "mxfp8": "mxfp8_e4m3",
    "nvfp4": "nvfp4_2d",
}
"""Precisions whose quantized weights follow from masters alone, and the formats of these."""


def trained(
    precision: str, world_size: int, steps: int = 2, folder: str = "", **options: Any
) -> DistributedOptimizer:
    """On a rank: an engine that has made some steps, with all experts in one weight."""
    cell = Cell(precision, "quantized", world_size=world_size)
    engine = layouts.grouped_experts(MOE(), cell, **options)
    assert isinstance(engine, DistributedOptimizer)
    for step in range(1, steps + 1):
        engine.forward_backward(step)
        for phase in ("reduce_grads", "clip_grads", "optimizer_step"):
            getattr(engine, phase)()
        if folder and step == 1:
            engine.save(Path(folder))
    return engine


def differing(precision: str, world_size: int, options: dict[str, Any]) -> tuple[int, list[str]]:
    """On a rank: of how many tensors which are not those of the quantized whole masters."""
    state = trained(precision, world_size, **options).state_dict()
    format = formats.by_name(STATELESS[precision])
    compared, different = 0, []
    for name, master in state["master"].items():
        if f"{name}.rowwise.data" not in state["model"]:
            continue
        for key, expected in tensors_of(quantize_padded(format, master.bfloat16())):
            compared += 1
            if not torch.equal(state["model"][f"{name}.{key}"], expected):
                different.append(f"{name}.{key}")
    return compared, different


# On one rank, nothing is cut; on three, shards end within rows, as the test of `cuts` holds.
@pytest.mark.parametrize("world_size", [*(pytest.param(n, marks=NIGHTLY) for n in (1, 2)), 3])
@pytest.mark.parametrize(
    ("precision", "options"),
    [
        *((precision, {"bucket_size": 1}) for precision in STATELESS),
        ("mxfp8", {"reuse_grad_buffer_for_param_gather": True}),
    ],
)
def test_shards_are_cast_as_the_whole(
    run_on_ranks: Callable[..., list[Any]], precision: str, options: dict[str, Any], world_size: int
) -> None:
    """Bytes, scales and amaxes of both operands, whichever of the two ways they were made."""
    for compared, different in run_on_ranks(world_size, differing, precision, world_size, options):
        assert compared >= 6 * 4
        assert different == []


def cuts(precision: str, world_size: int) -> list[tuple[tuple[int, ...], Span]]:
    """On a rank: shapes of the quantized parameters, and which elements of each it casts."""
    engine = trained(precision, world_size, steps=0)
    return [
        (tuple(shard.slot.parameter.shape), shard.owned)
        for shard in engine.shards
        if shard.buffer.gathers_bytes
    ]


def test_shards_end_within_rows_and_between_codes_of_one_byte(
    run_on_ranks: Callable[..., list[Any]],
) -> None:
    """What makes the casts above a test of the reduction."""
    ranks = run_on_ranks(3, cuts, "nvfp4", 3)
    ends = [
        (owned.stop % (shape[1] * shape[2]), shape[2])
        for held in ranks
        for shape, owned in held
        if owned.stop < shape[0] * shape[1] * shape[2]
    ]
    assert any(end % width % 2 for end, width in ends)
    assert any(end > 0 for end, _ in ends)


CUT = "blocks.0.experts.1.up.weight"
"""A weight of which either of two ranks has a half."""


class OwnAmaxes(DistributedOptimizer):
    """Every rank casts by the amaxes of its own elements."""

    casting = False

    def stage(self, *, shared: bool) -> None:
        self.casting = True
        super().stage(shared=shared)
        self.casting = False

    def reduce_amax(self, amaxes: Tensor) -> Tensor:
        return amaxes if self.casting else super().reduce_amax(amaxes)


def planted(workload: Workload, cell: Cell, *, engine: type[DistributedOptimizer]) -> Engine:
    """`grouped_experts` with another engine, and half of each weight on either of two ranks."""
    put = partial(arrange, single_grouped_weight=True)
    return engine.of(workload, cell, put, bucket_size=1)


@pytest.mark.parametrize(
    ("precision", "where"),
    [
        ("fp8_current", f"quantized {CUT}.rowwise"),
        pytest.param("fp8_block", "scale blocks.0.experts.0.up.weight.rowwise", marks=NIGHTLY),
        pytest.param("mxfp8", f"quantized {CUT}.columnwise", marks=NIGHTLY),
        pytest.param("nvfp4", f"quantized {CUT}.rowwise", marks=NIGHTLY),
        ("fp8_delayed", "scale blocks.0.experts.2.up.quantizers.0.weight"),
    ],
)
def test_amaxes_that_nobody_reduced_are_caught(
    parity_in: ParityIn, precision: str, where: str
) -> None:
    """In the step that they are made in: in the bytes of an expert that is cut, or its scale.

    128 x 128 blocks have the same power of two for both halves of this one; the rank that has none
    of the first expert has another one. Delayed scaling casts by the scale of the step before.
    In the precisions that are left to the night, `test_shards_are_cast_as_the_whole` would see it.
    """
    with pytest.raises(ParityError) as failure:
        parity_in(Cell(precision, "quantized", sequence="train", world_size=2)).check(
            partial(planted, engine=OwnAmaxes), layouts.discrete_experts, workload=MOE
        )
    found = failure.value.verdict.divergence
    assert found is not None
    assert f"{found.step} {found.phase} {found.kind} {found.name}" == f"1 optimizer_step {where}"


@pytest.mark.parametrize("world_size", [pytest.param(1, marks=pytest.mark.nightly), 3])
def test_delayed_scaling_agrees_with_replicated_training(
    parity_in: ParityIn, world_size: int
) -> None:
    """Its scales have a history, so whole masters alone do not tell what they must be."""
    cell = Cell("fp8_delayed", "quantized", sequence="train2-eval", world_size=world_size)
    parity_in(cell).check(
        partial(layouts.distributed_optimizer, bucket_size=1),
        partial(layouts.master_adamw, main_grad=True),
        workload=MOE,
    )


def reloaded(precision: str, folder: str, options: dict[str, Any]) -> list[str]:
    """On a rank: what of a checkpoint is not there after a load into an engine that went on."""
    engine = trained(precision, 2, folder=folder, overlap_param_gather=True, **options)
    engine.load(Path(folder))
    loaded = {name: tensor.clone() for name, tensor in engine.state_dict()["model"].items()}
    engine.sync_parameters()
    synced = engine.state_dict()["model"]
    dist.barrier()
    return [name for name, tensor in loaded.items() if not torch.equal(tensor, synced[name])]


@pytest.mark.parametrize(
    ("precision", "options"),
    [("nvfp4", {}), ("fp8_block", {}), ("mxfp8", {"reuse_grad_buffer_for_param_gather": True})],
)
def test_nothing_of_before_is_gathered_after_a_load(
    run_on_ranks: Callable[..., list[Any]], tmp_path: Path, precision: str, options: dict[str, Any]
) -> None:
    """Parameters that lagged behind when they were loaded are up to date."""
    assert run_on_ranks(2, reloaded, precision, str(tmp_path), options) == [[], []]
