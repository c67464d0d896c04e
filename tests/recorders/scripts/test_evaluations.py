"""An evaluation with other weights in the place of the model's own, which are put back after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from checked import ParityIn, failed
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from pytest_precision import Cell, script

WHEN: dict[str, Callable[[int], bool]] = {
    "before the first step": lambda number: number == 0,
    "between steps": lambda number: number % 2 == 1,
    "after the last step": lambda number: number == 4,
}


class Ema:
    """An average of weights, which takes their place for as long as it is evaluated."""

    def __init__(self, model: nn.Module) -> None:
        self.weights = [*model.parameters()]
        self.shadow = [one.detach().clone() for one in self.weights]
        self.backup: list[Tensor] = []

    def update(self) -> None:
        torch._foreach_lerp_(self.shadow, [one.detach() for one in self.weights], 0.1)

    @contextmanager
    def in_use(self, back: bool = True) -> Iterator[None]:
        """Swap the average in; `back` puts the weights back."""
        self.backup = [one.detach().clone() for one in self.weights]
        for own, average in zip(self.weights, self.shadow, strict=True):
            own.data.copy_(average)
        yield
        for own, old in zip(self.weights, self.backup, strict=True):
            if back:
                own.data.copy_(old)
        self.backup = []


def net() -> nn.Module:
    """A model with dropout and with a buffer that moves in training."""
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 3))


@script
def evaluated(
    cell: Cell,
    record: Any,
    when: str = "",
    grad: bool = False,
    closure: bool = False,
    wrapped: bool = False,
    planted: str = "",
    steps: int = 1000,
) -> None:
    """A loop that evaluates its average where `when` says so, and draws its data in each step."""
    torch.manual_seed(0)
    model = net()
    called = torch.compile(model, backend="eager") if wrapped else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if closure:
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
    ema, swa = Ema(model), AveragedModel(model).eval()

    def evaluate() -> None:
        model.eval()
        with ema.in_use(back=planted != "not put back"), torch.set_grad_enabled(grad):
            model(torch.ones(2, 5))
            model(torch.zeros(2, 5))
        with torch.no_grad():
            swa(torch.ones(2, 5))
        if planted != "left in eval mode":
            model.train()

    def step() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = called(torch.randn(6, 5)).square().mean()
        loss.backward()
        return loss

    with record():
        for number in range(steps + 1):
            if WHEN.get(when, lambda number: False)(number):
                evaluate()
            if number == steps:
                break
            if closure:
                optimizer.step(step)
            else:
                step()
                optimizer.step()
            ema.update()


@pytest.mark.parametrize(
    "grad", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["no_grad", "grad"]
)
@pytest.mark.parametrize("when", WHEN)
def test_an_evaluation_of_an_average_changes_nothing(
    parity_there: ParityIn, when: str, grad: bool
) -> None:
    """The state between two steps is that of the weights which are put back, and of training."""
    verdict = parity_there(Cell(sequence="train4")).check(
        partial(evaluated, when=when, grad=grad), evaluated
    )
    assert verdict.outcome == "pass"


@pytest.mark.parametrize("how", [{"closure": True}, {"wrapped": True}, {"steps": 4}], ids=str)
def test_it_changes_nothing_in_other_loops(parity_there: ParityIn, how: dict[str, Any]) -> None:
    """Those with closures, with a wrapper, and those that end with an evaluation."""
    parity = parity_there(Cell(sequence="train4"))
    for when in ("between steps", "after the last step"):
        assert parity.check(partial(evaluated, when=when, **how), partial(evaluated, **how))


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ("not put back", "master differs at step 1 after optimizer_step"),
        ("left in eval mode", "flag differs at step 1 after optimizer_step: training is False"),
    ],
)
def test_what_an_evaluation_leaves_is_found(
    parity_there: ParityIn, planted: str, said: str
) -> None:
    """It is what the next step starts from."""
    side = partial(evaluated, when="between steps")
    verdict = failed(parity_there(Cell(sequence="train4")), partial(side, planted=planted), side)
    assert said in str(verdict.reason)
