"""DeepSpeed: ZeRO 1 and 2, and its engine without a compiler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch.distributed as dist

from pytest_precision.loops.locate import Locate
from pytest_precision.recipes.release import expect_release

TESTED = "0.19"


def locate(engine: Any) -> Locate:
    """Return the `locate` of an engine of ZeRO 1 or 2, which `deepspeed.initialize` has made."""
    expect_release("deepspeed", TESTED)
    names = {parameter: name for name, parameter in engine.module.named_parameters()}
    zero, pieces = engine.optimizer, {}
    for number, partition in enumerate(zero.single_partition_of_fp32_groups):
        parameters = zero.round_robin_bit16_groups[number]
        offsets = zero.round_robin_bit16_offsets[number]
        first = dist.get_rank(zero.real_dp_process_group[number]) * partition.numel()
        held = [(names[p], tuple(p.shape), p.numel()) for p in parameters]
        pieces[partition] = [*_cut(held, offsets, first, first + partition.numel())]
    return pieces.get


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
