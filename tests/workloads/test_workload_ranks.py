"""Two real ranks train every workload: wrapped in DDP, and sharded block by block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from workload_measures import CELL, seeded

from pytest_precision import Workload, workloads

RANKS = 2


def replicate(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def shard(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    empty = [p for p in model.parameters() if p.to_local().numel() == 0]
    assert bool(empty) == (dist.get_rank() > 0)
    return model


def backward(workload: Workload, model: nn.Module, rank: int = 0, ranks: int = 1) -> None:
    """Accumulates the mean gradient of two steps: in the second one, moe's last expert is idle."""
    for step in (1, 2):
        microbatches = workload.microbatches(CELL.replace(world_size=RANKS), step)
        tokens = sum(map(workload.tokens, microbatches))
        for microbatch in microbatches[rank::ranks]:
            # DDP and fully_shard divide by the number of ranks.
            (workload.loss(model, microbatch)[0] * ranks / tokens).backward()


def compare_with_one_rank() -> int:
    """On a rank: how many gradients were compared with those of a process that is alone."""
    compared = 0
    for make in (workloads.mlp, workloads.gpt, workloads.moe):
        workload, alone = make(), seeded(make())
        backward(workload, alone)
        for wrap in (replicate, shard):
            model = seeded(make())
            backward(workload, wrap(model), dist.get_rank(), RANKS)
            for (name, parameter), expected in zip(
                model.named_parameters(), alone.parameters(), strict=True
            ):
                if not expected.requires_grad:
                    assert parameter.grad is expected.grad is None
                    continue
                grad = parameter.grad
                grad = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
                torch.testing.assert_close(grad, expected.grad, msg=lambda m, n=name: f"{n}: {m}")
                compared += 1
    return compared


def test_two_ranks_get_the_gradients_of_one(run_on_ranks: Callable[..., list[Any]]) -> None:
    """Without `find_unused_parameters`, with uneven shares, empty shards and an idle expert."""
    made = (seeded(make()) for make in (workloads.mlp, workloads.gpt, workloads.moe))
    trained = sum(p.requires_grad for model in made for p in model.parameters())
    assert run_on_ranks(RANKS, compare_with_one_rank) == [2 * trained] * RANKS
