"""Commands say how far they have come, and what an end leaves."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_precision.__main__ import main
from pytest_precision._progress import WatchedWork

RecordFile = Callable[..., Path]
Output = pytest.CaptureFixture[str]

FORWARD = """
import torch
with torch.no_grad():
    torch.nn.Linear(2, 2)(torch.ones(1, 2))
1 / 0
"""

LOOP = """
import torch

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters())
for step in range(5):
    if step == 3:
        raise KeyboardInterrupt
    model(torch.ones(2)).sum().backward()
    optimizer.step()
"""

SCORES = """
import torch
from pytest_precision.rollout import show_scores

model = torch.nn.Embedding(5, 5)
for call in range(3):
    show_scores(lambda ids: [model(row)[1:, 0] for row in ids], sequences=[torch.tensor([1, 2, 3])])
"""


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step is one that took ten seconds."""
    monkeypatch.setattr(WatchedWork, "interval", 0.0)


@pytest.mark.usefixtures("at_once")
def test_record_and_compare_say_how_far_they_are(record: RecordFile, capsys: Output) -> None:
    """Each step of both, with what was observed of it."""
    record("a", "--steps", "3")
    first, second, last = capsys.readouterr().err.splitlines()
    assert first.startswith("pytest_precision: train.py: 1 of 3 steps, ")
    assert "to go" in second
    assert last.startswith("pytest_precision: recorded 3 steps of train.py in a: ")
    record("b", "--steps", "3", "--quiet")
    assert capsys.readouterr().err == ""
    assert main(["compare", "a", "b"]) == 0
    assert "pytest_precision: a against b: 1 of 3 steps, " in capsys.readouterr().err
    assert main(["compare", "-q", "a", "b"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("at_once")
def test_score_says_how_many_calls_it_has_recorded(in_folder: Path, capsys: Output) -> None:
    """Nobody knows how many there will be."""
    (in_folder / "score.py").write_text(SCORES)
    assert main(["score", "--out", "s", "--", "score.py"]) == 0
    said = capsys.readouterr().err
    assert "pytest_precision: score.py: 2 calls, " in said
    assert said.splitlines()[-1].startswith("pytest_precision: recorded 3 calls of score.py in s")


@pytest.mark.parametrize(
    ("text", "options", "left"),
    [
        ("1 / 0\n", [], "nothing was recorded"),
        (LOOP, [], "a has an unfinished recording, of which `compare` reads whole steps: delete"),
        (FORWARD, ["--forward"], "a has an unfinished recording: delete"),
    ],
    ids=["error", "interrupt", "forward"],
)
def test_what_an_end_leaves_is_said_last(
    in_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Output,
    text: str,
    options: list[str],
    left: str,
) -> None:
    """Below the script's own traceback; forwards have no journal that could be read."""
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    (in_folder / "own.py").write_text(text)
    with pytest.raises((ZeroDivisionError, KeyboardInterrupt)) as error:
        main(["record", "--out", "a", *options, "--", "own.py"])
    sys.excepthook(error.type, error.value, error.tb)
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"pytest_precision: {left}")
