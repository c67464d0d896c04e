"""Forwards without gradients are recorded of any script, and held to another one's."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_precision.__main__ import main

PLAIN = """
import sys
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
with torch.no_grad():
    for step in range(3):
        data = torch.arange(8.0).reshape(2, 4) + step
        if step == 1 and "data" in sys.argv:
            data[1, 2] += 0.5
        if step == 2 and "weight" in sys.argv:
            model[2].weight[0, 1] += 0.5
        model(data)
"""

TRAINING = """
import sys
import torch
from tiny_decoder import sequences, tiny

torch.manual_seed(0)
model = tiny(torch.float32)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
ids = torch.stack(sequences(9, 9))
for step in range(2):
    with torch.no_grad():
        model(input_ids=ids)
    model(ids).logits.logsumexp(-1).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if "late" in sys.argv:
        model.norm.weight.data[0] += 0.5
"""


def recorded(
    folder: Path,
    name: str,
    text: str,
    *arguments: str,
    steps: str = "10",
    options: tuple[str, ...] = (),
) -> str:
    """Record the forwards of a script with these arguments, and return the folder."""
    script = folder / "forward.py"
    script.write_text(text, encoding="utf-8")
    command = ["record", "--forward", "--steps", steps, "--out", str(folder / name), *options]
    assert main([*command, "--", str(script), *arguments]) == 0
    return str(folder / name)


def test_a_script_that_never_trains_is_compared_by_its_modules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first module and row are named, and a weight before them."""
    theirs = recorded(tmp_path, "theirs", PLAIN)
    assert main(["compare", recorded(tmp_path, "ours", PLAIN), theirs]) == 0
    assert main(["compare", recorded(tmp_path, "data", PLAIN, "data"), theirs]) == 1
    words = "output of 0 differs at token 0 of sequence 1; weights agree"
    assert words in capsys.readouterr().out
    assert main(["compare", recorded(tmp_path, "weight", PLAIN, "weight"), theirs]) == 1
    out = capsys.readouterr().out
    assert "weight 2 differs in 1 of 16 elements, at most 0.5 off" in out
    assert "at call 3 of 3" in out


def test_what_is_scored_before_and_after_a_train_step_is_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Forwards of training are left out; log-probabilities follow from ids and logits."""
    theirs = recorded(tmp_path, "theirs", TRAINING)
    assert main(["compare", recorded(tmp_path, "ours", TRAINING), theirs]) == 0
    out = capsys.readouterr().out
    assert "in 2 steps agree" in out
    assert "rollout_probs_diff_max" in out
    assert main(["compare", recorded(tmp_path, "late", TRAINING, "late"), theirs]) == 1
    assert "weight norm" in capsys.readouterr().out


def test_the_script_ends_after_the_last_forward(tmp_path: Path) -> None:
    """It is ended where it begins the next one."""
    text = PLAIN.replace("        model(data)", "        model(data), print(step)")
    one = recorded(tmp_path, "one", text, steps="1")
    assert main(["compare", one, recorded(tmp_path, "two", text, steps="1")]) == 0


def test_a_script_without_such_a_forward_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty recording would agree with any other."""
    with pytest.raises(SystemExit):
        recorded(tmp_path, "none", "print('no forward')")
    assert "write its calls in torch.no_grad()" in capsys.readouterr().err
