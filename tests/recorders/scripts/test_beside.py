"""What a loop keeps beside its model and its optimizer is seen, or said not to be compared."""

from __future__ import annotations

import copy
import gc
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from checked import ParityIn, failed
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from pytest_precision import Cell, script

STEPS = 3


class Net(nn.Module):
    """Has a number that no tensor says."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0
        self.first, self.drop, self.last = nn.Linear(3, 5), nn.Dropout(0.25), nn.Linear(5, 1)
        self.norm = nn.BatchNorm1d(5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Compute the outputs."""
        return self.last(self.drop(self.norm(self.first(inputs)))) * self.scale


def averaged(model: nn.Module, decay: float) -> Callable[[], None]:
    """Keep an average as torch has it."""
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    return lambda: average.update_parameters(model)


def copied(model: nn.Module, decay: float) -> Callable[[], None]:
    """Keep an average in a copy of the model."""
    average = copy.deepcopy(model)

    def update() -> None:
        with torch.no_grad():
            for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(parameter, 1 - decay)

    return update


def in_dict(model: nn.Module, decay: float) -> Callable[[], None]:
    """Keep an average in a dict of tensors."""
    average = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update() -> None:
        for name, parameter in model.named_parameters():
            average[name].lerp_(parameter.detach(), 1 - decay)

    return update


def in_list(model: nn.Module, decay: float) -> Callable[[], None]:
    """Keep an average in a list of tensors, as diffusers does."""
    average = [parameter.detach().clone() for parameter in model.parameters()]

    def update() -> None:
        for mean, parameter in zip(average, model.parameters(), strict=True):
            mean.lerp_(parameter.detach(), 1 - decay)

    return update


def evaluated(model: nn.Module, decay: float) -> Callable[[], None]:
    """Call a module that is not trained."""
    with torch.random.fork_rng():
        other = nn.Linear(3, 2)
    nn.init.constant_(other.weight, decay)

    def update() -> None:
        with torch.no_grad():
            other(torch.ones(1, 3))

    return update


def two(model: nn.Module, decay: float, collected: bool) -> Callable[[], None]:
    """Keep two averages, of which Python may have seen the first one earlier."""
    holders = [nn.Sequential(), nn.Sequential()]
    for holder in holders:
        if collected:
            gc.collect()
        holder.append(copy.deepcopy(model))

    def update() -> None:
        with torch.no_grad():
            for number, holder in enumerate(holders):
                for mean, one in zip(holder.parameters(), model.parameters(), strict=True):
                    mean.lerp_(one, (1 - decay) / (number + 1))

    return update


AVERAGES = {
    "averaged": averaged,
    "copied": copied,
    "dict": in_dict,
    "list": in_list,
    "called": evaluated,
}
TWO = {"two": partial(two, collected=False), "collected": partial(two, collected=True)}


@script
def loop(
    cell: Cell,
    record: Any,
    average: str = "",
    decay: float = 0.9,
    change: Callable[..., None] | None = None,
    at: int = STEPS,
) -> None:
    """Train; `change` something after one step, which nothing has shown by then."""
    torch.manual_seed(1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    random.seed(1)
    np.random.seed(1)
    update = (AVERAGES | TWO)[average](model, decay) if average else lambda: None
    with record():
        for step in range(1, STEPS + 1):
            inputs = torch.ones(4, 3) * random.random() + torch.randn(4, 3) + np.random.rand()
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            scheduler.step()
            update()
            if change is not None and step == at:
                change(model, optimizer, scheduler)


@pytest.mark.parametrize(
    "average",
    [
        name if name in ("averaged", "called") else pytest.param(name, marks=pytest.mark.nightly)
        for name in AVERAGES
    ],
)
def test_an_average_of_the_weights_is_compared(parity_there: ParityIn, average: str) -> None:
    """It lies in memory, whatever holds it; so is a module that is called and not trained."""
    parity, side = parity_there(Cell(sequence=f"train{STEPS}")), partial(loop, average=average)
    assert {*parity.check(partial(side, at=0), side).left_out} == {"grad"}
    found = failed(parity, partial(side, decay=0.99), side)
    assert found.divergence is not None
    assert found.divergence.kind == "average"


def test_an_average_in_a_list_has_the_names_of_the_weights(parity_there: ParityIn) -> None:
    """A place in a list says nothing to whoever looks for the weight."""
    parity, side = parity_there(Cell(sequence=f"train{STEPS}")), partial(loop, average="list")
    found = failed(parity, partial(side, decay=0.99), side).divergence
    assert found is not None
    assert found.name.removeprefix("list of weights: ") in dict(Net().named_parameters())


def test_averages_have_the_same_names_whenever_memory_was_collected(parity_there: ParityIn) -> None:
    """The collector lists what is young first, a wrapper after the module in it."""
    parity = parity_there(Cell(sequence=f"train{STEPS}"))
    verdict = parity.check(partial(loop, average="collected"), partial(loop, average="two"))
    assert {*verdict.left_out} == {"grad"}


@pytest.mark.parametrize("average", ["averaged", "copied", "dict", "list"])
def test_an_average_of_one_side_alone_is_named(parity_there: ParityIn, average: str) -> None:
    """The other side may keep it elsewhere, or not at all."""
    verdict = parity_there(Cell(sequence=f"train{STEPS}")).check(
        partial(loop, average=average), loop
    )
    (name,) = {*verdict.left_out} - {"grad"}
    assert name.startswith("average ")
    assert verdict.left_out[name] == "the reference has none"


def momentum(model: Net, optimizer: Any, scheduler: Any) -> None:
    model.norm.momentum = 0.5


def frozen(model: Net, optimizer: Any, scheduler: Any) -> None:
    model.first.weight.requires_grad_(False)


def nesterov(model: Net, optimizer: Any, scheduler: Any) -> None:
    optimizer.param_groups[0]["nesterov"] = True


def later(model: Net, optimizer: Any, scheduler: Any) -> None:
    scheduler.last_epoch += 1


def drawn(model: Net, optimizer: Any, scheduler: Any) -> None:
    random.random()


def drawn_by_numpy(model: Net, optimizer: Any, scheduler: Any) -> None:
    np.random.rand()


def scaled(model: Net, optimizer: Any, scheduler: Any) -> None:
    model.scale = 2.0


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (momentum, "flag"),
        (frozen, "flag"),
        (nesterov, "hyper"),
        (later, "policy"),
        (drawn, "host_rng"),
        (drawn_by_numpy, "host_rng"),
        (scaled, "attribute"),
    ],
)
def test_a_change_after_the_last_step_is_red(
    parity_there: ParityIn, change: Callable[..., None], kind: str
) -> None:
    """A next step would compute with it."""
    found = failed(parity_there(Cell(sequence=f"train{STEPS}")), partial(loop, change=change), loop)
    assert found.divergence is not None
    assert (found.divergence.kind, found.divergence.step) == (kind, STEPS)


def left(model: Net, optimizer: Any, scheduler: Any) -> None:
    optimizer.zero_grad()


def hooked(model: Net, optimizer: Any, scheduler: Any) -> None:
    model.first.register_forward_hook(lambda *_: None)


def foreach(model: Net, optimizer: Any, scheduler: Any) -> None:
    optimizer.param_groups[0]["foreach"] = True


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (left, "attribute gradients left at the end of a step"),
        (hooked, "attribute number of forward hooks of first"),
        (foreach, "attribute foreach of group 0 of SGD"),
    ],
)
def test_what_may_be_bookkeeping_is_named(
    parity_there: ParityIn, change: Callable[..., None], named: str
) -> None:
    """Another framework may keep it otherwise, so that it proves no defect."""
    verdict = parity_there(Cell(sequence=f"train{STEPS}")).check(partial(loop, change=change), loop)
    assert verdict.left_out[named].endswith("has none")
