"""The command `audit`, on functions that build what a training loop is made of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_precision.__main__ import main

SETUP = """
import argparse
import ctypes
import functools
import subprocess
import sys
import torch
from pytest_precision.optim import FusedAdam

class Made:
    def __init__(self, dtype, kind, **options):
        print("what people print is not part of the findings")
        torch.manual_seed(0)
        self.model = torch.nn.Linear(8, 4).to(dtype)
        self.optimizer = kind(self.model.parameters(), lr=1e-6, **options)

def sound():
    made = Made(torch.float32, torch.optim.AdamW, weight_decay=0)
    return made.model, made.optimizer

def spoken():
    print("Python's own")
    print("that of the process", file=sys.__stdout__)
    subprocess.run(["echo", "a program's"], check=True)
    ctypes.CDLL(None).puts(b"an extension's")
    return sound()

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

def needy(config):
    return wrong()

class Called:
    def __call__(self):
        return wrong()

partly, instance = functools.partial(needy, 1), Called()

def void():
    pass

def words():
    return "model", "optimizer"

def unending():
    return *sound(), (batch for batch in iter(int, 1))

def parsing():
    argparse.ArgumentParser().parse_args()
    import beside
    return sound()
"""


@pytest.fixture(autouse=True)
def setup_file(in_folder: Path) -> Iterator[Path]:
    """A module of a user's, forgotten after the test."""
    file = in_folder / "audited_setup.py"
    file.write_text(SETUP)
    (in_folder / "beside.py").touch()
    (in_folder / "lacking.py").write_text("import nothing_like_it")
    yield file
    for name in ("audited_setup", "beside", "lacking"):
        sys.modules.pop(name, None)


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
    first, place, remedy, *table = capsys.readouterr().out.splitlines()
    assert first.startswith("error: torch AdamW on bf16 parameters: moments and update are bf16, ")
    assert first.endswith("[update-below-fp32]")
    assert place == "  at: weight, bias"
    assert remedy.startswith("  do: keep fp32 storage with MixedPrecisionPolicy(")
    assert table == [
        "1 error",
        "",
        "2 parameters in bf16, 36 elements: weight and 1 more",
        "  updated by torch AdamW; without a master; exp_avg in bf16, exp_avg_sq in bf16",
    ]


def test_what_cannot_be_built_has_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    """The finding says why."""
    main(["audit", "audited_setup:refused"])
    first, _, _, last = capsys.readouterr().out.splitlines()
    assert first.endswith("[option-refused]")
    assert last == "1 error"


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Everything as plain data."""
    main(["audit", "audited_setup:sound", "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    assert found["findings"] == []
    weight, bias = found["stored"]
    assert (weight["name"], weight["size"], weight["stored"]) == ("weight", 32, "fp32")
    assert bias["states"] == [["exp_avg", "fp32"], ["exp_avg_sq", "fp32"]]


def test_what_is_printed_is_not_part_of_the_findings(capfd: pytest.CaptureFixture[str]) -> None:
    """Whoever prints it: standard error has it, and standard output goes on as it was."""
    main(["audit", "audited_setup:spoken", "--format", "json"])
    subprocess.run(["echo", "afterwards"], check=True)
    told, shown = capfd.readouterr()
    assert json.loads(told.removesuffix("afterwards\n"))["findings"] == []
    assert "Python's own" in shown
    assert "a program's" in shown
    assert "an extension's" in shown


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
        ("nowhere:build", "expected a module that can be imported but got build='nowhere:build'"),
        ("nowhere.at.all:build", "there is no nowhere in "),
        ("audited_setup", "for build() in jobs/setup.py write jobs.setup:build"),
        ("audited_setup.py:sound", "for build() in jobs/setup.py write jobs.setup:build"),
        (":sound", "expected MODULE:FUNCTION but got build=':sound' (str)"),
        ("audited_setup:lost", "expected a function in audited_setup but got build="),
        ("audited_setup:torch", "the functions there: broken, needy, noted, nothing"),
        ("audited_setup:needy", "missing a required argument: 'config'"),
        ("audited_setup:nothing", "expected at least one optimizer but got Linear"),
        ("audited_setup:void", "expected at least one model but got nothing"),
        ("audited_setup:words", "data loaders but got part 0.0='model' (str)"),
        ("audited_setup:unending", "(generator); give what is in it, or leave it out"),
        ("lacking:build", "it raised ModuleNotFoundError: No module named 'nothing_like_it'"),
    ],
)
def test_nothing_to_audit(capsys: pytest.CaptureFixture[str], name: str, message: str) -> None:
    """A usage error, with what to write instead."""
    with pytest.raises(SystemExit, match="2"):
        main(["audit", name])
    assert message in capsys.readouterr().err


def test_errors_of_the_function_are_no_finding(capsys: pytest.CaptureFixture[str]) -> None:
    """The traceback is shown, and the exit status is not that of a finding."""
    with pytest.raises(SystemExit, match="2"):
        main(["audit", "audited_setup:broken"])
    written = capsys.readouterr().err
    assert 'raise TypeError("a defect of its own")' in written
    assert written.rstrip().endswith("got TypeError: a defect of its own; its traceback says where")


@pytest.mark.parametrize("build", ["sound", "parsing"])
def test_the_function_gets_no_arguments_of_the_command(build: str) -> None:
    """Nor does it leave its own behind; it may import what lies beside it."""
    before = [*sys.argv], [*sys.path]
    assert main(["audit", f"audited_setup:{build}", "--fail-on", "warning"]) == 0
    assert (sys.argv, sys.path) == before


@pytest.mark.parametrize("build", ["partly", "instance"])
def test_whatever_can_be_called_has_a_place(capsys: pytest.CaptureFixture[str], build: str) -> None:
    """That of the function in it, or of its class."""
    main(["audit", f"audited_setup:{build}", "--format", "github"])
    text = "def needy" if build == "partly" else "class Called"
    line = SETUP[: SETUP.index(text)].count("\n") + 1
    assert capsys.readouterr().out.startswith(f"::error file=audited_setup.py,line={line},")


def test_the_installed_command_finds_modules_here() -> None:
    """As `python -m` does. Into a pipe, what is printed waits in buffers until the process ends."""
    program = Path(sys.executable).with_name("pytest-precision")
    words = [program, "audit", "audited_setup:spoken"]
    buffered = os.environ | {"PYTHONUNBUFFERED": ""}
    found = subprocess.run(words, env=buffered, capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stdout.splitlines()[0]) == (0, "nothing was found")
    assert "that of the process" in found.stderr
    assert "an extension's" in found.stderr


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


AUDIT_STAGES = ["audit", "audited_stages:build", "--fail-on=never", "--format=json"]


def expect_one_voice(printed: str) -> None:
    """Expect one finding, and what both stages have."""
    told = json.loads(printed)
    assert [one["rule"] for one in told["findings"]] == ["update-below-fp32"]
    assert {stage["name"] for stage in told["stages"]} == {"stage 0 of 2", "stage 1 of 2"}
    assert {row["stored"] for row in told["stored"]} == {"fp32", "bf16"}


def test_ranks_speak_with_one_voice(
    here_and_beside: Callable[[list[str]], None],
    in_folder: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The first one, which is this process, prints what any of them found."""
    (in_folder / "audited_stages.py").write_text(STAGES)
    try:
        here_and_beside(AUDIT_STAGES)
    finally:
        sys.modules.pop("audited_stages", None)
    expect_one_voice(capfd.readouterr().out)


@pytest.mark.nightly
def test_ranks_of_torchrun_speak_with_one_voice(in_folder: Path) -> None:
    """The first one prints what any of them found."""
    (in_folder / "audited_stages.py").write_text(STAGES)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = [*launch, "-m", "pytest_precision", *AUDIT_STAGES]
    found = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    expect_one_voice(found.stdout)
