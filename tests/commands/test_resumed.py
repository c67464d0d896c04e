"""A run that was resumed is compared with one that was not interrupted, step by step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_precision.__main__ import main

RecordFile = Callable[..., Path]

SCRIPT = """
import sys
import torch

run = sys.argv[1]
model = torch.nn.Linear(5, 3)
optimizer = torch.optim.AdamW(model.parameters())
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
if run != "whole":
    saved = torch.load("checkpoint.pt")
    for name, part in parts.items():
        if name != run.removeprefix("without "):
            part.load_state_dict(saved[name])
rows = torch.randn(9, 8, 5, generator=torch.Generator().manual_seed(0))
for step, batch in enumerate(rows):
    if run not in ("whole", "anew") and step < 2:
        continue
    model(batch).square().mean().backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    if run == "whole" and step == 1:
        torch.save({name: part.state_dict() for name, part in parts.items()}, "checkpoint.pt")
"""


@pytest.fixture
def resumed(
    record: RecordFile, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Record the whole run and a resumed one; return status and output of their comparison."""

    def compared(run: str, *options: str) -> tuple[int, str]:
        (in_folder / "resume.py").write_text(SCRIPT)
        record("whole", "--steps", "4", script=("resume.py", "whole"))
        record("resumed", "--steps", "2", script=("resume.py", run))
        capsys.readouterr()
        status = main(["compare", *options, "resumed", "whole"])
        return status, capsys.readouterr().out

    return compared


def test_a_run_that_restores_all_agrees(resumed: Callable[..., tuple[int, str]]) -> None:
    """From the step on that it goes on with."""
    status, said = resumed("resumed", "--from", "3")
    assert status == 0
    assert said.startswith("resumed against whole from step 3: ")
    assert " tensors in 2 steps agree; " in said


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("without model", "master differs before the first step"),
        ("without optimizer", "lr differs at step 1"),
        ("without schedule", "policy differs before the first step: last_epoch of StepLR is 0"),
        ("anew", "loss differs at step 1 after forward_backward"),
    ],
)
def test_what_was_not_restored_is_told(
    resumed: Callable[..., tuple[int, str]], run: str, words: str
) -> None:
    """Before the first step where its start shows it, else in the step that reads it."""
    status, said = resumed(run, "--from", "3")
    assert status == 1
    assert words in said.splitlines()[0]
    assert "step 1 here is step 3 of the reference" in said
    assert "--from 3" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "compare it with --from 3, or test both in one cell, with @script(resume=function)"),
        (("--from", "5"), "expected --from of a step from 1 to 4, those in whole but got 5"),
        (("--from", "2"), "but got 2 in resumed and 3 in whole"),
    ],
)
def test_other_steps_are_refused(
    resumed: Callable[..., tuple[int, str]],
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    words: str,
) -> None:
    """With what would compare them."""
    with pytest.raises(SystemExit, match="2"):
        resumed("resumed", *options)
    assert words in capsys.readouterr().err
