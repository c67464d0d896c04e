"""Advice names what the author of a layout, a script or a command can change."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checked import ParityIn, failed
from torch import nn

from pytest_precision import Cell, ParityError, command, script
from pytest_precision.recorders.scripts.script_recorder import Record

LOOP = """
import sys
import torch
from pytest_precision import record

model = torch.nn.Linear(3, 2)
if "named" in sys.argv:
    record({"net": model})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    model(torch.ones(4, 3)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def train(record: Record, prefix: str, backward: str = "backward") -> None:
    """Train two steps of a model that is named."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record({prefix: model}):
        for _ in range(2):
            loss = model(torch.ones(4, 3)).square().mean()
            loss.backward() if backward == "backward" else torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()


@script
def named(cell: Cell, record: Record) -> None:
    """Name the model."""
    train(record, "net")


@script
def renamed(cell: Cell, record: Record) -> None:
    """Name it otherwise."""
    train(record, "wrapper")


@script
def hides(cell: Cell, record: Record) -> None:
    """Show no loss."""
    train(record, "net", "another")


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a file that trains two steps."""
    (tmp_path / "loop.py").write_text(LOOP)
    monkeypatch.chdir(tmp_path)


def test_a_script_names_its_model(parity_there: ParityIn) -> None:
    """It has no engine to give a wrapper to."""
    found = "\n".join(failed(parity_there(Cell(sequence="train2")), renamed, named).details)
    assert "If a wrapper adds a prefix, name the bare model with record(model=model)" in found
    assert "forward_model" not in found


@pytest.mark.usefixtures("in_folder")
def test_a_file_names_its_model(parity_there: ParityIn) -> None:
    """It can import the package's `record`."""
    sides = command("loop.py", "named"), command("loop.py")
    found = "\n".join(failed(parity_there(Cell(sequence="train2")), *sides).details)
    assert "adds a prefix, let the file name the bare model: `from pytest_precision im" in found
    assert "forward_model" not in found


@pytest.mark.usefixtures("in_folder")
def test_a_command_that_ends_too_early_has_no_block(parity_there: ParityIn) -> None:
    """Its arguments decide how long it trains."""
    sides = command("loop.py", "1"), command("loop.py")
    words = r"those of the cell, but got 2 when the file had ended; let its arguments ask for more"
    with pytest.raises(ParityError, match=words):
        parity_there(Cell(sequence="train3")).check(*sides)


def test_a_script_that_ends_too_early_has_a_block(parity_shared: ParityIn) -> None:
    """The advice is about its loop."""
    words = r"but got 2 in the block of record\(\); give it more data or epochs, and keep optimizer"
    with pytest.raises(ParityError, match=words):
        parity_shared(Cell(sequence="train3")).check(renamed, named)


def test_a_test_accepts_a_hidden_kind_by_an_argument(parity_there: ParityIn) -> None:
    """As it is written in Python."""
    reason = failed(parity_there(Cell(sequence="train2")), hides, named).reason
    assert """say so with criterion={"loss": unchecked(reason="...")}""" in reason
