"""The plain loop computes what an engine does, from weights that it is given, by itself."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pytest_precision import Capture, Cell, layouts, workloads
from pytest_precision.probes.gradients.plain import PlainLoop, Sums, without_collectives


class Small(workloads.mlp):
    def __init__(self) -> None:
        super().__init__(width=8, depth=1)


def test_it_sums_what_an_engine_sums(one_rank: None) -> None:
    """At the engine's weights, in fp64, within the rounding of fp32."""
    workload, cell = Small(), Cell()
    engine = layouts.adamw(workload, cell)
    engine.start(Capture())
    engine.forward_backward(1)
    loop = PlainLoop(workload, cell)
    weights = {name: weight.detach() for name, weight in engine.model.named_parameters()}
    assert loop.lacking({"head.weight"}, {}) == [name for name in weights if name != "head.weight"]
    loop.put(weights, {})
    sums = Sums.of(loop.microbatches(1), 1)
    for name, weight in engine.model.named_parameters():
        if weight.grad is not None:
            torch.testing.assert_close(sums.total[name].float(), weight.grad, rtol=1e-4, atol=1e-6)
    loop.put(weights, {}, seed=1)
    moved = Sums.of(loop.microbatches(1), 1)
    assert not torch.equal(moved.total["head.weight"], sums.total["head.weight"])


def test_no_collective_is_waited_in(one_rank: None) -> None:
    """The other ranks take no part in it, and would never come."""
    with without_collectives(), pytest.raises(RuntimeError, match="called by one rank alone"):
        dist.all_reduce(torch.ones(3))
    with without_collectives():
        assert nn.Linear(2, 3)(torch.ones(2)).shape == (3,)
