"""The command `audit`, on functions that build what a training loop is made of."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_precision.__main__ import main

SETUP = """
import torch
from pytest_precision.optim import FusedAdam

class Made:
    def __init__(self, dtype, kind, **options):
        torch.manual_seed(0)
        self.model = torch.nn.Linear(8, 4).to(dtype)
        self.optimizer = kind(self.model.parameters(), lr=1e-6, **options)

def sound():
    made = Made(torch.float32, torch.optim.AdamW, weight_decay=0)
    return made.model, made.optimizer

def noted():
    made = Made(torch.float32, torch.optim.AdamW)
    return {"model": made.model, "optimizer": made.optimizer, "scheduler": None}

def warned():
    made = Made(torch.float32, torch.optim.SGD)
    made.optimizer.param_groups[0]["betas"] = (0.9, 0.9)
    return made.model, made.optimizer

def wrong():
    made = Made(torch.bfloat16, torch.optim.AdamW, weight_decay=0)
    return made.model, made.optimizer

def refused():
    return Made(torch.float32, FusedAdam, foreach=False)

def broken():
    raise TypeError("a defect of its own")

def nothing():
    return torch.nn.Linear(2, 2)
"""


@pytest.fixture(autouse=True)
def setup_file(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of a user's, forgotten after the test."""
    file = in_folder / "audited_setup.py"
    file.write_text(SETUP)
    monkeypatch.delitem(sys.modules, "audited_setup", raising=False)
    return file


@pytest.mark.parametrize(
    ("build", "options", "status"),
    [
        ("sound", (), 0),
        ("noted", (), 0),
        ("warned", (), 0),
        ("wrong", (), 1),
        ("refused", (), 1),
        ("noted", ("--fail-on", "warning"), 0),
        ("warned", ("--fail-on", "warning"), 1),
        ("wrong", ("--fail-on", "warning"), 1),
        ("wrong", ("--fail-on", "never"), 0),
    ],
)
def test_the_exit_status(build: str, options: tuple[str, ...], status: int) -> None:
    """Findings of the severity that is named, and worse ones."""
    assert main(["audit", f"audited_setup:{build}", *options]) == status


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Findings first, then what everything is stored in."""
    main(["audit", "audited_setup:wrong"])
    first, empty, *table = capsys.readouterr().out.splitlines()
    assert first.startswith("error: torch AdamW on bf16 parameters: moments and update are bf16, ")
    assert first.endswith("[update-below-fp32]")
    assert empty == ""
    assert table == [
        "parameter bf16: 2 with 36 elements (weight and 1 more)",
        "  master none",
        "  torch AdamW keeps exp_avg bf16, exp_avg_sq bf16",
    ]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Everything as plain data."""
    main(["audit", "audited_setup:sound", "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    assert found["findings"] == []
    weight, bias = found["stored"]
    assert (weight["name"], weight["size"], weight["stored"]) == ("weight", 32, "fp32")
    assert bias["states"] == [["exp_avg", "fp32"], ["exp_avg_sq", "fp32"]]


def test_github(capsys: pytest.CaptureFixture[str]) -> None:
    """One annotation per finding, at the function."""
    main(["audit", "audited_setup:wrong", "--format", "github"])
    line = SETUP[: SETUP.index("def wrong")].count("\n") + 1
    (found,) = capsys.readouterr().out.splitlines()
    place = f"file=audited_setup.py,line={line},title=update-below-fp32"
    assert found.startswith(f"::error {place}::torch AdamW on bf16 parameters")


def test_sarif(capsys: pytest.CaptureFixture[str]) -> None:
    """One result per finding."""
    main(["audit", "audited_setup:wrong", "--format", "sarif"])
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert [one["ruleId"] for one in run["results"]] == ["update-below-fp32"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere:build", "expected a function in a module that can be imported but got build="),
        ("audited_setup:lost", "expected a function in a module that can be imported but got"),
        ("audited_setup", "write package.module:function"),
        ("audited_setup:nothing", "expected at least one optimizer but got Linear"),
    ],
)
def test_nothing_to_audit(capsys: pytest.CaptureFixture[str], name: str, message: str) -> None:
    """A usage error, with what to write instead."""
    with pytest.raises(SystemExit, match="2"):
        main(["audit", name])
    assert message in capsys.readouterr().err


def test_errors_of_the_function_are_its_own() -> None:
    """They are raised as they are."""
    with pytest.raises(TypeError, match="a defect of its own"):
        main(["audit", "audited_setup:broken"])


def test_the_installed_command_finds_modules_here() -> None:
    """As `python -m` does."""
    program = Path(sys.executable).with_name("pytest-precision")
    words = [program, "audit", "audited_setup:sound"]
    found = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stdout.splitlines()[0]) == (0, "nothing was found")


STAGES = """
import torch, torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

def build():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.Linear(8, 8).to(torch.bfloat16 if rank else torch.float32)
    stage = PipelineStage(model, rank, 2, torch.device("cpu"))
    return stage, torch.optim.SGD(model.parameters())
"""


def test_ranks_speak_with_one_voice(in_folder: Path) -> None:
    """The first one prints what any of them found."""
    (in_folder / "audited_stages.py").write_text(STAGES)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = [*launch, "-m", "pytest_precision", "audit", "audited_stages:build", "--fail-on=never"]
    found = subprocess.run([*words, "--format=json"], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout)
    assert [one["rule"] for one in told["findings"]] == ["update-below-fp32"]
    assert {stage["name"] for stage in told["stages"]} == {"stage 0 of 2", "stage 1 of 2"}
    assert {row["stored"] for row in told["stored"]} == {"fp32", "bf16"}
