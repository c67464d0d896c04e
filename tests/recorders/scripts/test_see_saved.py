"""What a script shows of its own may stand in sequences that save, load and skip."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from checked import ParityIn, failed
from test_steps import loss_of
from torch import nn

from pytest_precision import Cell, script


def train(record: Any, planted: str, kind: str, *, resume: bool = False) -> None:
    """Train with an average of the weights, which the script shows after each update."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    average = {name: own.detach().clone() for name, own in model.named_parameters()}
    file = record.folder / "all.pt"
    if resume:
        states = torch.load(file)
        model.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])
        if planted != "average is not loaded":
            average = states[2]
        torch.set_rng_state(states[3])
    with record():
        for step in range(1, 9):
            loss_of(model).backward()
            optimizer.step()
            optimizer.zero_grad()
            for name, own in model.named_parameters():
                average[name].lerp_(own.detach(), 0.1)
                record.see(kind, name, average[name])
            if step == record.save_after:
                states = [model.state_dict(), optimizer.state_dict(), average]
                torch.save([*states, torch.get_rng_state()], file)


def resumed(cell: Cell, record: Any, planted: str = "", kind: str = "ema") -> None:
    """The loop, once more in new state."""
    train(record, planted, kind, resume=True)


@script(resume=resumed)
def averaging(cell: Cell, record: Any, planted: str = "", kind: str = "ema") -> None:
    """The loop from its start."""
    train(record, planted, kind)


@pytest.mark.parametrize(
    "kind",
    [
        "ema",
        pytest.param("average", marks=pytest.mark.nightly),
        pytest.param("amax", marks=pytest.mark.nightly),
    ],
)
def test_what_is_shown_is_compared_across_a_save_and_a_load(
    parity_there: ParityIn, kind: str
) -> None:
    """The save and the load do not show it, and the steps do."""
    parity, whole = parity_there(Cell(sequence="train2-save-load-train2")), Cell(sequence="train4")
    loop = partial(averaging, kind=kind)
    assert parity.check(loop, loop, reference_cell=whole).outcome == "pass"
    assert parity.check(loop, partial(loop, planted="")).outcome == "pass"


def test_what_is_not_loaded_of_it_is_found(parity_there: ParityIn) -> None:
    """It differs in the step after the load."""
    parity = parity_there(Cell(sequence="train2-save-load-train2"))
    broken = partial(averaging, planted="average is not loaded")
    reason = failed(parity, broken, averaging, reference_cell=Cell(sequence="train4")).reason
    assert "ema differs at step 3" in reason
