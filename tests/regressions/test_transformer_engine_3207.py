"""Transformer Engine #3207: a group that ends with an empty shard is not updated.

The kernel for many tensors was launched when the last of them was full, which an empty one never
is. So FusedAdam left all tensors of such a group as they were, on those ranks alone that had
nothing of the last one. It counted the step, and raised nothing.

Here the moments are compared element by element, and the shards of the second rank are named at
step 1.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from fine_tuning import USUAL_TOLERANCE, relative_gaps
from sharded_loops import LR, train

from pytest_precision import Cell, Parity, ParityError, script

pytestmark = pytest.mark.precision_regression("TransformerEngine#3207")


class FullyLaunched(torch.optim.AdamW):
    """AdamW with zeros as its first state, whatever gradients there are."""

    def __init__(self, groups: Any) -> None:
        super().__init__(groups, lr=LR)
        for parameter in (p for group in self.param_groups for p in group["params"]):
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            self.state[parameter] = {"step": torch.tensor(0.0), **moments}


class SkipsBeforeEmpty(FullyLaunched):
    """Counts the step of a group that ends with an empty shard, and does nothing else."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            if not group["params"][-1].to_local().numel():
                for parameter in group["params"]:
                    parameter.grad = None
                    self.state[parameter]["step"] += 1
        super().step(closure)


@script
def trainer(cell: Cell, record: Any, optimizer: type = FullyLaunched) -> None:
    """The loop, with an optimizer."""
    train(record, optimizer)


@pytest.mark.precision_matrix(precision=["fp32"], sequence=["train4"], world_size=[2])
def test_the_stale_shards_are_caught_at_step_1(parity: Parity) -> None:
    """Four losses would not have found them."""
    with pytest.raises(ParityError) as failure:
        parity.check(partial(trainer, optimizer=SkipsBeforeEmpty), trainer)
    found, curves = failure.value.verdict.divergence, failure.value.verdict.curves
    assert found is not None
    assert curves is not None
    assert (found.step, found.phase, found.kind) == (1, "optimizer_step", "exp_avg")
    assert (found.name, found.rank) == ("0.weight", 1)
    assert max(relative_gaps(curves["loss"])) < USUAL_TOLERANCE
