"""The rule by which a workload has gradients clipped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_precision import Cell, Engine, layouts, workloads

pytestmark = pytest.mark.usefixtures("one_rank")
CELL = Cell("fp32")


class Halving(workloads.mlp):
    """A framework's own rule."""

    def clip(self, parameters: list[Tensor], max_norm: float) -> float:
        for parameter in parameters:
            parameter.grad.mul_(0.5)
        return 7.0


class Silent(workloads.mlp):
    """A rule that keeps the norm to itself."""

    def clip(self, parameters: list[Tensor], max_norm: float) -> None:
        pass


def with_gradients(workload: workloads.mlp, **options: Any) -> Engine:
    torch.manual_seed(0)
    model = workload.model(CELL)
    optimizer = torch.optim.AdamW(workload.groups(model))
    engine = Engine(workload, CELL, model, optimizer, **options)
    engine.forward_backward(1)
    return engine


def gradients(engine: Engine) -> list[Tensor]:
    return [p.grad.clone() for _, p in engine.masters()]


def test_torchs_rule_is_torchs_function() -> None:
    """Its squares overflow in fp32 where those of ours do not."""
    norms = []
    for clip in ("torch", "fp64", nn.utils.clip_grad_norm_):
        engine = with_gradients(workloads.mlp(), clip=clip)
        for _, parameter in engine.masters():
            parameter.grad.fill_(1e25)
        engine.clip_grads()
        norms.append(engine.grad_norm)
    assert [norm.isfinite().item() for norm in norms] == [False, True, False]


def test_torchs_rule_without_a_limit_clips_nothing() -> None:
    """The norm is computed all the same."""
    engine = with_gradients(workloads.mlp(), clip="torch")
    engine.max_norm = None
    before = gradients(engine)
    engine.clip_grads()
    assert all(map(torch.equal, before, gradients(engine)))
    assert engine.grad_norm > 0


def test_a_frameworks_rule_is_what_runs() -> None:
    """A broken one is then seen, and a right one need not have our bits."""
    engine = with_gradients(Halving())
    before = gradients(engine)
    engine.clip_grads()
    assert engine.grad_norm == 7.0
    assert all(torch.equal(0.5 * g, own) for g, own in zip(before, gradients(engine), strict=True))


def test_a_rule_must_return_the_norm() -> None:
    """It is compared, and says whether the step overflowed."""
    with pytest.raises(TypeError, match="expected clip to return the norm before clipping but got"):
        with_gradients(Silent()).clip_grads()


def test_an_unknown_rule_is_refused() -> None:
    """Before anything trains."""
    with pytest.raises(ValueError, match=r"'fp64', 'torch' or a callable .* clip='fp32' \(str\)"):
        with_gradients(workloads.mlp(), clip="fp32")


def test_flat_shards_have_no_rule_of_their_own() -> None:
    """Another rule would take the norm of one rank's shards for that of all."""

    class ByTorch(workloads.mlp):
        clip = "torch"

    engine = layouts.distributed_optimizer(ByTorch(), CELL)
    engine.forward_backward(1)
    engine.reduce_grads()
    with pytest.raises(ValueError, match="expected clip='fp64', since gradients are flat shards"):
        engine.clip_grads()
