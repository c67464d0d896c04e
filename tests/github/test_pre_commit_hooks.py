"""The hooks that other projects take from this repository."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from pre_commit.clientlib import load_manifest

from pytest_precision.__main__ import main

ROOT = Path(__file__).parents[2]

BUILD = """
import torch

def build():
    model = torch.nn.Linear(4, 2).to(torch.bfloat16)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)
"""


def test_a_hook_audits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pre-commit takes the file, and the command that it runs finds what is lost."""
    (hook,) = load_manifest(ROOT / ".pre-commit-hooks.yaml")
    program, *words = shlex.split(hook["entry"])
    assert program in (ROOT / "pyproject.toml").read_text().partition("[project.scripts]")[2]
    (tmp_path / "set_up_of_hook.py").write_text(BUILD)
    monkeypatch.chdir(tmp_path)
    assert main([*words, *hook["args"], "set_up_of_hook:build"]) == 1
    assert "[update-below-fp32]" in capsys.readouterr().out
