"""What modules save by `get_extra_state` goes on from a checkpoint."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import pytest
import torch
from checked import ParityIn, failed
from torch import Tensor, nn

from pytest_precision import Cell, script

INTERRUPTED = Cell(sequence="train2-save-load-train2")
WHOLE = INTERRUPTED.replace(sequence="train4")


class Counting(nn.Sequential):
    """Counts its calls, in a number or in what it pickles."""

    def __init__(self, pickles: bool, *parts: nn.Module) -> None:
        super().__init__(*parts)
        self.calls, self.pickles = 0, pickles

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        outputs: Tensor = super().forward(inputs)
        return outputs / self.calls

    def get_extra_state(self) -> Any:
        held = {"calls": self.calls}
        if not self.pickles:
            return held
        return torch.frombuffer(bytearray(pickle.dumps(held)), dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        held = pickle.loads(bytes(state.tolist())) if self.pickles else state
        self.calls = held["calls"]


def train(record: Any, pickles: bool, planted: str, *, resume: bool) -> None:
    """Train a model which counts, as does a part of it."""
    model = Counting(pickles, nn.Linear(3, 4), Counting(pickles, nn.Linear(4, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    file = record.folder / "saved.pt"
    if resume:
        saved = torch.load(file, weights_only=False)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["rng"])
        if planted == "part":
            model[1].calls = 0
        if planted == "root":
            model.calls = 0
    with record():
        for number in range(1, 1000):
            model(torch.ones(2, 3)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if number == record.save_after:
                held = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(held | {"rng": torch.get_rng_state()}, file)


def again(cell: Cell, record: Any, pickles: bool = False, planted: str = "") -> None:
    """The loop from its checkpoint."""
    train(record, pickles, planted, resume=True)


@script(resume=again)
def loop(cell: Cell, record: Any, pickles: bool = False, planted: str = "") -> None:
    """The loop from its start."""
    train(record, pickles, planted, resume=False)


@pytest.mark.parametrize("pickles", [False, True])
def test_extra_state_goes_on_where_it_was_saved(parity_there: ParityIn, pickles: bool) -> None:
    """It is there at the load, as it was at the save."""
    side = partial(loop, pickles=pickles)
    assert parity_there(INTERRUPTED).check(side, side, reference_cell=WHOLE).outcome == "pass"


@pytest.mark.parametrize(("planted", "of"), [("part", "1"), ("root", "the model")])
def test_extra_state_that_is_not_loaded_is_found(
    parity_there: ParityIn, planted: str, of: str
) -> None:
    """The load has changed it, whether or not a loss has shown that yet."""
    broken = partial(loop, planted=planted)
    verdict = failed(parity_there(INTERRUPTED), broken, partial(broken, pickles=False))
    said = f"load after step 2 changed extra_state in the candidate: extra state.calls of {of} is 0"
    assert said in str(verdict.reason)
