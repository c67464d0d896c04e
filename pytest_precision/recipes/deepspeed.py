"""DeepSpeed: ZeRO 1 and 2, and its engine without a compiler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch.distributed as dist

from pytest_precision.errors import expected_but_got
from pytest_precision.loops.locate import Locate
from pytest_precision.recipes.release import expect_release

TESTED = "0.19"


def locate(engine: Any) -> Locate:
    """Return the `locate` of an engine of ZeRO 1 or 2, which `deepspeed.initialize` has made.

    Raises:
        RuntimeError: the release is another one.
        ValueError: it is another stage, or the optimizer has several groups, which DeepSpeed
            updates one after the other, so that each would be taken for a step.
    """
    expect_release("deepspeed", TESTED)
    zero, stage = engine.optimizer, engine.zero_optimization_stage()
    if stage not in (1, 2) or len(zero.single_partition_of_fp32_groups) != 1:
        raise ValueError(
            expected_but_got(
                "ZeRO 1 or 2 with one parameter group",
                f"ZeRO {stage} with {len(zero.optimizer.param_groups)}",
                "write an engine that shows what deepspeed.utils.safe_get_full_fp32_param returns",
            )
        )
    (partition,) = zero.single_partition_of_fp32_groups
    names = {parameter: name for name, parameter in engine.module.named_parameters()}
    held = [(names[p], tuple(p.shape), p.numel()) for p in zero.round_robin_bit16_groups[0]]
    first = dist.get_rank(zero.real_dp_process_group[0]) * partition.numel()
    pieces = [*_cut(held, zero.round_robin_bit16_offsets[0], first, first + partition.numel())]
    return {partition: pieces}.get


def _cut(
    held: Iterable[tuple[str, tuple[int, ...], int]], offsets: Iterable[int], first: int, stop: int
) -> Iterator[tuple[str | None, tuple[int, ...], int, int]]:
    """Yield what lies between two positions of a flat group; the gaps are padding."""
    for (name, shape, size), offset in zip(held, offsets, strict=True):
        start, end = max(first, offset), min(stop, offset + size)
        if start < end:
            yield None, (), 0, start - first
            yield name, shape, start - offset, end - offset
            first = end
    yield None, (), 0, stop - first


def on_cpu() -> None:
    """Set DeepSpeed up in the process group that is there, without compiling collectives."""
    import deepspeed

    expect_release("deepspeed", TESTED)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
