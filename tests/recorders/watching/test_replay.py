"""A second run of forward and backward finds what is not the same twice, before the update."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from watched_loops import Noisy, Plan, train

from pytest_precision import Recorder, WatchError
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources


@pytest.mark.parametrize(
    ("wrapper", "reduces"),
    [
        ("ddp", False),
        ("none", False),
        ("hsdp", True),
        pytest.param("fsdp2", True, marks=pytest.mark.nightly),
    ],
)
def test_on_ranks(resources: Resources, wrapper: str, reduces: bool) -> None:
    """The rank with a nondeterministic operation says so, and nobody does in an honest loop.

    Where the gradients of a rank are of all ranks, others have other gradients for that reason.
    """
    ranks = resources.ranks(Settings(timeout=120, device="cpu"))
    plan = Plan("noisy", wrapper=wrapper, every=None, replay=True)
    first, *others, last = ranks.run(4, train, plan)
    assert others[1][0].startswith("step 3: output of ")
    assert " on rank 2 (" in others[1][0]
    assert all(message.startswith("step 3: grad of ") for message in first + others[0] + last)
    assert bool(first + others[0] + last) == reduces
    assert ranks.run(4, train, plan._replace(defect="")) == [[]] * 4


class Backward(torch.autograd.Function):
    """A function whose backward is not the same twice, once it is noisy."""

    calls = 0
    is_noisy = False

    @staticmethod
    def forward(ctx: Any, batch: Tensor) -> Tensor:
        return batch.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        Backward.calls += Backward.is_noisy
        return gradient * (1 + 2**-4 * Backward.calls)


class Model(nn.Module):
    """A model with dropout, statistics of its batches, and two operations that can be noisy."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 4)
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.25)
        self.noisy = Noisy()

    def forward(self, *, batch: Tensor) -> dict[str, Tensor]:
        hidden = self.norm(Backward.apply(self.first(batch)))
        return {"scores": self.noisy(self.dropout(hidden))}


def trained(replay: bool, noisy: str = "", *, beside: bool = False, copies: int = 2) -> list[Any]:
    """Train in microbatches, one of them noisy; return all bits that are left."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    watch = Recorder(model, optimizer, replay=True)
    Backward.is_noisy, Backward.calls = False, 0
    if replay:
        watch.start()
    try:
        for step in range(4):
            for copy in range(copies):
                model.noisy.is_noisy = noisy == "forward" and (step, copy) == (2, 1)
                Backward.is_noisy = noisy == "backward" and (step, copy) == (2, 1)
                with torch.autocast("cpu", torch.bfloat16):
                    loss = model(batch=torch.randn(4, 8))["scores"].float().square().mean()
                (loss + 0.1 * beside * model.first.weight.square().sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        if replay:
            watch.stop()
    return [*model.state_dict().values(), torch.get_rng_state()]


def test_it_changes_nothing() -> None:
    """Weights, statistics and generators are as without it, whatever autocast and dropout do."""
    assert all(map(torch.equal, trained(True), trained(False)))


@pytest.mark.parametrize(
    ("noisy", "words"),
    [
        ("forward", "step 3: output of Model on rank 0 "),
        ("backward", "step 3: grad of first.weight on rank 0 "),
    ],
)
def test_what_is_not_the_same_twice_ends_the_run(noisy: str, words: str) -> None:
    """In the microbatch in which it is, and before the update reads it."""
    with pytest.raises(WatchError, match=words):
        trained(True, noisy)


@pytest.mark.filterwarnings("error")
def test_a_copy_of_a_watched_model_is_a_plain_one(tmp_path: Path) -> None:
    """So is what is saved of it: neither has anything of the watch."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(model, optimizer, replay=True) as recorder:
        for _ in range(2):
            model(batch=torch.ones(4, 8))["scores"].sum().backward()
            optimizer.step()
        copied = copy.deepcopy(model)
        torch.save(model, tmp_path / "model")
        copied(batch=torch.ones(4, 8))["scores"].sum().backward()
        assert recorder.step() == 2
    loaded = torch.load(tmp_path / "model", weights_only=False)
    for plain in (copied, loaded):
        plain(batch=torch.ones(4, 8))["scores"].sum().backward()
    assert not model._forward_hooks


def test_a_gradient_from_beside_the_model_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """It is said once; all other gradients are replayed."""
    assert all(map(torch.equal, trained(True, beside=True), trained(False, beside=True)))
    assert capsys.readouterr().err.count("gradients of first.weight do not come from") == 1
    with pytest.raises(WatchError, match=r"grad of first\.bias"):
        trained(True, "backward", beside=True)
