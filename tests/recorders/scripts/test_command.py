"""A script file with arguments is a side of a check."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checked import ParityIn, failed

from pytest_precision import Cell, ParityError, bitwise, command, unchecked

SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
import next_to_it

assert not dist.is_initialized()
if "--alone" not in sys.argv:
    dist.init_process_group("gloo")
    assert dist.get_world_size() == int(os.environ["WORLD_SIZE"])
model = torch.nn.Linear(3, 2)
if dist.is_initialized():
    model = torch.nn.parallel.DistributedDataParallel(model)
lr = float(sys.argv[1])
optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
generator = torch.Generator().manual_seed(int(os.environ["RANK"]))
os.chdir("/")
for step in range(next_to_it.STEPS):
    model(torch.randn(4, 3, generator=generator)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a script and a module beside it."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "next_to_it.py").write_text("STEPS = 100\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.filterwarnings("error::pytest_precision.PrecisionLeakWarning")
def test_a_file_runs_as_a_launcher_starts_it(parity_in: ParityIn) -> None:
    """Each rank has its place in the environment, and the file makes the process group."""
    parity = parity_in(Cell(sequence="train3", world_size=2))
    verdict = parity.check(command("train.py", 0.1), command("train.py", "1e-1"))
    assert verdict.observations > 50


@pytest.mark.usefixtures("folder")
def test_axes_of_the_cell_are_in_the_arguments(parity_in: ParityIn) -> None:
    """So that a command line is as long as it is without a matrix."""
    parity = parity_in(Cell(sequence="train2", extra=(("lr", 0.1),)))
    other = parity.cell.replace(lr=0.2)
    sides = command("train.py", "{lr}", "--alone"), command("train.py", "{lr}", "--alone", "x")
    found = failed(parity, *sides, reference_cell=other).divergence
    assert found is not None
    assert (found.kind, found.candidate, found.reference) == ("lr", 0.1, 0.2)


@pytest.mark.usefixtures("folder")
def test_a_file_may_be_configured_by_variables(parity_in: ParityIn, folder: Path) -> None:
    """Each side has its own ones, from the start of its ranks on."""
    (folder / "by_variable.py").write_text(SCRIPT.replace("sys.argv[1]", "os.environ['RATE']"))
    parity = parity_in(Cell(sequence="train2"))
    sides = (command("by_variable.py", "--alone", env={"RATE": rate}) for rate in ("0.1", "0.2"))
    verdict = failed(parity, *sides)
    assert verdict.divergence is not None
    assert (verdict.divergence.candidate, verdict.divergence.reference) == (0.1, 0.2)
    assert "RATE" not in os.environ


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("env", "words"),
    [
        (["RATE"], r"got env=\['RATE'\] \(list\); write env="),
        ({"RATE": 0.1}, r"text but got RATE=0\.1 \(float\)"),
    ],
)
def test_variables_that_no_process_can_have_are_refused(env: Any, words: str) -> None:
    """Before anything starts."""
    with pytest.raises(TypeError, match=words):
        command("train.py", env=env)


@pytest.mark.usefixtures("folder")
def test_a_file_may_tell_more(parity_in: ParityIn, folder: Path) -> None:
    """It has the recording that is open, and runs without one."""
    inside = SCRIPT.replace("for step", "record({'net': model}, see={'grad'})\nfor step")
    inside += "    record.see('weights', 'sum', model.weight.detach().sum())\n"
    text = f"from pytest_precision import record\n{inside}"
    (folder / "telling.py").write_text(text)
    parity = parity_in(Cell(sequence="train2"))
    sides = (command("telling.py", lr, "--alone") for lr in (0.1, 0.2))
    no_rates = {"default": unchecked(reason="another rate"), "weights": bitwise()}
    found = failed(parity, *sides, criterion=no_rates).divergence
    assert found is not None
    assert (found.step, found.kind, found.name) == (1, "weights", "sum")
    alone = [sys.executable, "telling.py", "0.1", "--alone"]
    subprocess.run(alone, check=True, env={**os.environ, "RANK": "0"})


@pytest.mark.usefixtures("folder")
def test_braces_without_an_axis_are_an_error(parity_in: ParityIn) -> None:
    """The axes are listed."""
    parity = parity_in(Cell(sequence="train2"))
    with pytest.raises(ParityError, match="expected an axis in braces, one of precision, "):
        parity.check(command("train.py", "{rate}"), command("train.py", "0.1"))


@pytest.mark.usefixtures("folder")
def test_a_command_that_fails_is_an_error(parity_in: ParityIn) -> None:
    """Its own exception is shown, and its peers are not waited for."""
    parity = parity_in(Cell(sequence="train2", world_size=2))
    verdict = failed(parity, command("train.py", "fast"), command("train.py", "0.1"))
    assert "could not convert string to float: 'fast'" in verdict.reason


def test_a_file_that_does_not_exist_is_refused(folder: Path) -> None:
    """Nothing is started."""
    with pytest.raises(FileNotFoundError, match=r"got file='test.py' \(str\); relative paths"):
        command("test.py")


@pytest.mark.usefixtures("folder")
def test_this_process_is_as_it_was(parity_in: ParityIn) -> None:
    """A command in the only rank leaves arguments, paths, directory and environment alone."""
    before = [*sys.argv], [*sys.path], Path.cwd(), dict(os.environ)
    parity = parity_in(Cell(sequence="train2"))
    parity.check(command("train.py", "0.1"), command("train.py", "0.1", "--alone"))
    assert before == (sys.argv, sys.path, Path.cwd(), dict(os.environ))
