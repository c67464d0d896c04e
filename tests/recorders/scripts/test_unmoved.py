"""What both sides have, and one of them never advances, is no less compared than what both do."""

from __future__ import annotations

import copy
import random
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from checked import ParityIn, failed
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel

from pytest_precision import Cell, script
from pytest_precision.engine.kinds import KINDS

CELL = Cell(sequence="train3")


class Net(nn.Module):
    """Counts in Python what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1)
        self.tokens = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Compute the outputs."""
        return self.last(self.norm(self.first(inputs)).relu())


def scheduled(model: Net, optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    """Keep a scheduler whose rate is the same in all recorded steps."""
    return StepLR(optimizer, 30).step


def averaged(model: Net, optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    """Keep an average as torch has it."""
    average = AveragedModel(model)
    return lambda: average.update_parameters(model)


def copied(model: Net, optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    """Keep an average in a dict of tensors."""
    average = {name: one.detach().clone() for name, one in model.named_parameters()}

    def update() -> None:
        for name, one in model.named_parameters():
            average[name].lerp_(one.detach(), 0.1)

    return update


def state_copied(
    model: Net, optimizer: torch.optim.Optimizer, chosen: Callable[[torch.Tensor], bool]
) -> Callable[[], object]:
    """Keep an average of what `state_dict` returns, counters among it, or of some of that."""
    with_buffers = copy.deepcopy(model.state_dict())
    average = type(with_buffers)((k, v) for k, v in with_buffers.items() if chosen(v))

    def update() -> None:
        for name, one in model.state_dict().items():
            if chosen(one):
                average[name].copy_(average[name] * 0.9 + one * 0.1)

    return update


def copied_in_order(model: Net, optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    """Keep the average of `copied` in another dict, and move it faster."""
    average = OrderedDict((name, one.detach().clone()) for name, one in model.named_parameters())

    def update() -> None:
        for name, one in model.named_parameters():
            average[name].lerp_(one.detach(), 0.2)

    return update


def counted(model: Net, optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    """Count in an attribute of the model."""

    def count() -> None:
        model.tokens += 8

    return count


def augmented(model: Net, optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    """Draw from Python's generator, as an augmentation does."""
    random.seed(1)
    return random.random


def shuffled(model: Net, optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    """Draw from numpy's generator, as a shuffle does."""
    np.random.seed(1)
    return np.random.random


def counted_in_group(model: Net, optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    """Count steps in a group of an optimizer whose parameters count them by themselves."""
    (group,) = optimizer.param_groups
    group["step"] = 0

    def count() -> None:
        group["step"] += 1

    return count


HELD = {
    "policy": scheduled,
    "average": averaged,
    "average in a dict": copied,
    "average in an ordered dict": copied_in_order,
    "average of the state": partial(state_copied, chosen=torch.is_tensor),
    "average of numbers of the state": partial(state_copied, chosen=torch.is_floating_point),
    "attribute": counted,
    "attribute of a group": counted_in_group,
    "host_rng": augmented,
    "host_rng of numpy": shuffled,
}
"""What a loop advances after each update, by its kind."""

AT_NIGHT = {
    "average in a dict",
    "average in an ordered dict",
    "average of numbers of the state",
    "attribute of a group",
    "host_rng of numpy",
}
"""What is of a kind, and held as another one of that kind is."""


@script
def loop(
    cell: Cell, record: Callable[..., None], held: str = "", often: int = 1, rate: float = 0.01
) -> None:
    """Train a model, and advance what is held so often in each step."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    advance = HELD[held](model, optimizer) if held else lambda: None
    with record():
        while True:
            model(torch.randn(8, 3)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            for _ in range(often):
                advance()


def test_every_kind_that_is_shown_late_is_here() -> None:
    """By the table of kinds, so that a new one needs an entry."""
    late = {kind for kind, row in KINDS.items() if row.once_moved}
    assert late == {held.partition(" ")[0] for held in HELD}


@pytest.mark.parametrize(
    "held",
    [pytest.param(one, marks=pytest.mark.nightly) if one in AT_NIGHT else one for one in HELD],
)
def test_what_one_side_never_advances_differs(parity_there: ParityIn, held: str) -> None:
    """At the first step in which the other side's moves, whichever side it is."""
    moving, dead = partial(loop, held=held), partial(loop, held=held, often=0)
    kind = held.partition(" ")[0]
    for candidate, reference, side in ((dead, moving, "candidate"), (moving, dead, "reference")):
        verdict = failed(parity_there(CELL), candidate, reference)
        assert f"the {side}'s {kind} " in verdict.reason
        assert "has not advanced since step 0" in verdict.reason
        assert verdict.divergence is not None
        assert (verdict.divergence.kind, verdict.divergence.step) == (kind, 1)


@pytest.mark.parametrize(
    "held",
    [
        "policy",
        "average",
        pytest.param("attribute", marks=pytest.mark.nightly),
        pytest.param("attribute of a group", marks=pytest.mark.nightly),
    ],
)
def test_what_begins_alike_and_advances_twice_as_often_differs(
    parity_there: ParityIn, held: str
) -> None:
    """It has agreed before the first update, so that it has not differed from the start."""
    verdict = failed(
        parity_there(CELL), partial(loop, held=held, often=2), partial(loop, held=held)
    )
    assert verdict.divergence is not None
    kind = held.partition(" ")[0]
    assert (verdict.divergence.kind, verdict.divergence.step) == (kind, 1)


@pytest.mark.parametrize("held", ["policy", "average", "average in a dict"])
def test_what_one_side_does_not_have_is_named(parity_there: ParityIn, held: str) -> None:
    """It is no divergence that a side has no such object."""
    left_out = parity_there(CELL).check(partial(loop, held=held), loop).left_out
    assert "the reference has none" in (left_out or {}).values()


def test_an_average_has_one_name_in_either_dict(parity_there: ParityIn) -> None:
    """So that it is compared where one side has it in a dict, the other in an `OrderedDict`."""
    sides = (partial(loop, held=f"average in {dict_}") for dict_ in ("a dict", "an ordered dict"))
    found = failed(parity_there(CELL), *sides).divergence
    assert found is not None
    assert (found.kind, found.step) == ("average", 1)


@pytest.mark.parametrize("held", ["average", "average in a dict"])
def test_an_average_that_neither_side_moves_is_named(parity_there: ParityIn, held: str) -> None:
    """Both sides have forgotten it, or do not reach its first update in so few steps."""
    dead = partial(loop, held=held, often=0)
    left_out = parity_there(CELL).check(dead, partial(dead, rate=1e-2)).left_out or {}
    assert "it has not moved on either side" in left_out.values()


@script
def frozen(cell: Cell, record: Callable[..., None], averages: bool = True) -> None:
    """Train beside a frozen copy of the model, and an average of it if told so."""
    torch.manual_seed(0)
    model = Net()
    teacher = copy.deepcopy(model).requires_grad_(False)
    average = copy.deepcopy(model).requires_grad_(False) if averages else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with record():
        while True:
            model(torch.randn(8, 3)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if average is not None:
                for mean, one in zip(average.parameters(), model.parameters(), strict=True):
                    mean.lerp_(one.detach(), 0.1)
    del teacher


def test_a_frozen_copy_is_not_taken_for_an_average(parity_there: ParityIn) -> None:
    """A side with a frozen copy alone has no average that it forgets to advance."""
    verdict = parity_there(CELL).check(partial(frozen, averages=False), frozen)
    assert "the candidate has none" in (verdict.left_out or {}).values()


@script
def evaluated(cell: Cell, record: Callable[..., None], calls: bool = True) -> None:
    """Train beside a frozen copy of the model, which is called for an evaluation."""
    torch.manual_seed(0)
    model = Net()
    teacher = copy.deepcopy(model).requires_grad_(False).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with record():
        while True:
            model(torch.randn(8, 3)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if calls:
                with torch.no_grad():
                    teacher(torch.ones(1, 3))


def test_what_is_shown_as_it_was_has_not_moved(parity_there: ParityIn) -> None:
    """A copy that one side alone calls is shown there, and is as the other side has it."""
    assert parity_there(CELL).check(evaluated, partial(evaluated, calls=False)).outcome == "pass"
