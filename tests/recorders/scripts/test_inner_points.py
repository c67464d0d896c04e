"""Optimizers that keep more than a state of each weight, or update at other weights, and resume."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from checked import ParityIn, failed
from test_steps import loss_of
from torch import nn

from pytest_precision import Cell, script

INTERRUPTED = Cell(sequence="train2-save-load-train2")
WHOLE = INTERRUPTED.replace(sequence="train4")


class Averaging(torch.optim.Optimizer):
    """Keeps the average of its weights in the model, and puts others there for its closure."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        own = [one for group in self.param_groups for one in group["params"]]
        for one in own:
            fast = self.state[one].setdefault("fast", one.clone())
            one.lerp_(fast, 0.25)
        with torch.enable_grad():
            loss = closure()
        for one in own:
            fast = self.state[one]["fast"]
            one.lerp_(fast, 1 - 1 / 0.75)
            fast.sub_(one.grad, alpha=self.param_groups[0]["lr"])
            one.lerp_(fast, 0.5)
        return loss


class Running(torch.optim.Optimizer):
    """Has another optimizer update fast weights, which lie in the model for that long."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})
        self.inner = torch.optim.SGD(self.param_groups, lr=lr)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        own = [one for group in self.param_groups for one in group["params"]]
        averages = [one.clone() for one in own]
        for one in own:
            one.copy_(self.state[one].setdefault("fast", one.clone()))
        self.inner.step()
        for one, average in zip(own, averages, strict=True):
            self.state[one]["fast"].copy_(one)
            one.copy_(average.lerp_(one, 0.5))


class Counting(torch.optim.SGD):
    """Keeps a count of losses in its state under a name, beside what it keeps of its weights."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr=lr, momentum=0.9)
        self.state["ema"] = {"fast": 0.0}  # type: ignore[index]

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self.state["ema"]["fast"] += 1.0  # type: ignore[index]


KINDS = {kind.__name__: kind for kind in (Averaging, Running, Counting)}


def train(record: Any, kind: str, planted: str, *, resume: bool) -> None:
    model = nn.Linear(3, 2)
    optimizer = KINDS[kind](model.parameters())
    file = record.folder / "saved.pt"
    if resume:
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        torch.set_rng_state(saved["rng"])
        if planted != "forgotten":
            optimizer.load_state_dict(saved["optimizer"])
    step = 0

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    with record(model):
        while True:
            if kind == "Averaging":
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
            step += 1
            if step == record.save_after:
                states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(states | {"rng": torch.get_rng_state()}, file)


def resumed(cell: Cell, record: Any, kind: str, planted: str = "") -> None:
    train(record, kind, planted, resume=True)


@script(resume=resumed)
def loop(cell: Cell, record: Any, kind: str, planted: str = "") -> None:
    train(record, kind, planted, resume=False)


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_loop_starts_from_the_weights_before_its_optimizer_moves_them(
    parity_there: ParityIn, kind: str
) -> None:
    """What a load has brought is seen before a step puts other weights into the model."""
    side = partial(loop, kind=kind)
    parity_there(INTERRUPTED).check(side, side, reference_cell=WHOLE)


@pytest.mark.parametrize("kind", KINDS)
def test_state_that_is_not_loaded_is_found(parity_there: ParityIn, kind: str) -> None:
    """What it starts from then is not what was saved."""
    side = partial(loop, kind=kind)
    broken = partial(side, planted="forgotten")
    verdict = failed(parity_there(INTERRUPTED), broken, side, reference_cell=WHOLE)
    assert "load after step 2" in verdict.reason or "step 3" in verdict.reason
