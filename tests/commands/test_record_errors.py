"""An error that ends a recorded script is reported by the lines of the script."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_precision.__main__ import main

BY_HAND = """
import torch

model = torch.nn.Linear(2, 2)


def train():
    loss = model(torch.ones(1, 2)).sum()
    loss.backward()
    model.weight.data -= model.weight.grad


for step in range(20):
    train()
"""

REFUSED = """Traceback (most recent call last):
  File "{folder}/own.py", line 14, in <module>
    train()
  File "{folder}/own.py", line 9, in train
    loss.backward()
RuntimeError: expected steps of a torch.optim.Optimizer but got """

IN_LIBRARY = """Traceback (most recent call last):
  File "{folder}/own.py", line 2, in <module>
    torch.zeros(2).view_as(None)
TypeError: """

SECOND_BACKWARD = """
import torch

try:
    torch.zeros(2).view_as(None)
except TypeError as cause:
    error = cause
loss = torch.ones(2, requires_grad=True).square().sum()
loss.backward()
try:
    loss.backward()
except RuntimeError as second:
    raise second from error
"""

INVALID = """  File "{folder}/own.py", line 2
    x = = 3
SyntaxError: invalid syntax
"""


@pytest.fixture
def reported(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Return what the interpreter prints of the error that ends a recorded script."""

    def report(text: str, *options: str) -> str:
        monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
        (in_folder / "own.py").write_text(text)
        with pytest.raises((RuntimeError, TypeError, SyntaxError)) as error:
            main(["record", "--out", "a", *options, "--", "own.py"])
        sys.excepthook(error.type, error.value, error.tb)
        # Python names a script by its absolute path, whatever the command line says.
        return capsys.readouterr().err.replace(str(in_folder), "{folder}")

    return report


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (BY_HAND, REFUSED),
        ("import torch\ntorch.zeros(2).view_as(None)\n", IN_LIBRARY),
        ("import torch\nx = = 3\n", INVALID),
    ],
)
def test_an_error_is_reported_as_without_recording(
    reported: Callable[..., str], text: str, shown: str
) -> None:
    """Neither what runs the script nor what watches it is in the traceback."""
    lines = reported(text).splitlines(keepends=True)
    # Python 3.11 marks a part of a line, and 3.13 another one.
    assert "".join(line for line in lines if line.strip(" ^~\n")).startswith(shown)


@pytest.mark.parametrize("options", [[], ["--lines"]])
def test_no_frame_of_the_recorder_is_between_those_of_torch(
    reported: Callable[..., str], options: list[str]
) -> None:
    """Of an error, and of its cause, where a call passes through the hooks of the recorder."""
    shown = reported(SECOND_BACKWARD, *options)
    assert "pytest_precision/" not in shown
    assert "RuntimeError: " in shown
    assert shown.count('Traceback (most recent call last):\n  File "{folder}/own.py", line ') == 2


def test_a_loop_in_a_thread_is_ended_without_a_word(
    record: Callable[..., Path], in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python would report the exception by which it ends; other errors are reported."""
    told: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", told.append)
    script = (in_folder / "train.py").read_text()
    inside = "".join(f"    {line}\n" for line in script.splitlines())
    (in_folder / "own.py").write_text(
        f"import threading\ndef train():\n{inside}for one in (lambda: [][0], train):\n"
        "    thread = threading.Thread(target=one)\n    thread.start()\n    thread.join()\n"
    )
    record("a", "--steps", "2", script=("own.py", "0.01", "9"))
    assert [one.exc_type for one in told] == [IndexError]
    assert threading.excepthook == told.append
