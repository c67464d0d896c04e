"""record --te: a script that trains with Transformer Engine is recorded over the stand-in."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import te_wheel

from pytest_precision import layouts
from pytest_precision.__main__ import main
from pytest_precision.matrix.declared import Declared
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources
from pytest_precision.ranks import ImportPath
from pytest_precision.ranks.needs import Needs
from pytest_precision.te import stand_in
from pytest_precision.trace.whole_recording import whole_recording

SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
import transformer_engine.pytorch as te
from transformer_engine.common.recipe import MXFP8BlockScaling

if "RANK" in os.environ and not dist.is_initialized():
    dist.init_process_group("gloo")
layers = te.LayerNormLinear(32, 64), te.Linear(64, 32)
model = torch.nn.Sequential(*layers).to("cuda", torch.bfloat16)
if dist.is_initialized():
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = te.optimizers.FusedAdam(model.parameters(), lr=float(sys.argv[1]), master_weights=True)
generator = torch.Generator().manual_seed(0)
for step in range(9):
    rows = torch.randn(32, 32, generator=generator).bfloat16().cuda()
    with te.autocast(recipe=MXFP8BlockScaling()):
        made = model(rows)
    made.float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

OPTIONS = ("--steps", "2")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")

Record = Callable[..., str]


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a script that trains."""
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(name: str, *options: str) -> tuple[str, ...]:
    """What the command is given to record the script."""
    return "record", *OPTIONS, "--out", name, *options, "--", "train.py", "0.01"


def by_command(name: str, *options: str, ranks: int = 1) -> str:
    """Record the script in processes of their own; return what they say."""
    launcher = TORCHRUN if ranks > 1 else ()
    command = (sys.executable, *launcher, "-m", "pytest_precision", *words(name, *options))
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stderr


@layouts.fresh_ranks
@layouts.may_leave(*stand_in.CHANGES, "current directory", "process group of all ranks")
def on_this_rank(folder: str, *given: str) -> str:
    """Do what the command does; return what it says."""
    os.chdir(folder)
    said = io.StringIO()
    with redirect_stderr(said):
        main([*given])
    return said.getvalue()


@pytest.fixture(params=["forked", pytest.param("command", marks=pytest.mark.nightly)])
def record(request: pytest.FixtureRequest, resources: Resources, in_folder: Path) -> Record:
    """Record the script on ranks that have imported torch alone, or as a user does."""
    if request.param == "command":
        return by_command
    needs = Needs.of(ImportPath.of(on_this_rank), Declared.of(on_this_rank))
    run = resources.ranks(Settings(timeout=120, device="cpu")).run

    def forked(name: str, *options: str, ranks: int = 1) -> str:
        return run(ranks, on_this_rank, str(in_folder), *words(name, *options), needs=needs)[0]

    return forked


@pytest.mark.slow
@te_wheel.NEEDED
def test_a_script_is_recorded_over_the_stand_in(record: Record) -> None:
    """The recording and what is printed say so, and two runs agree."""
    said = record("a", "--te", "cpu")
    record("b", "--te=auto")
    assert "pytest_precision: Transformer Engine 2.20" in said
    recording = whole_recording("candidate", Path("a"))
    assert recording.manifest is not None
    assert "on the CPU" in recording.manifest.versions["transformer_engine"]
    assert " --te cpu -- train.py 0.01" in recording.manifest.again("1")
    kinds = recording.trace.dtypes().keys()
    assert {"param", "final_grad", "master_param", "extra_state"} <= kinds
    assert main(["compare", "a", "b"]) == 0


@pytest.mark.slow
@te_wheel.NEEDED
def test_ranks_of_a_launch_are_recorded_over_the_stand_in(record: Record) -> None:
    """Each has the stand-in, and DDP reduces the gradients of Transformer Engine's layers."""
    record("two", "--te", "cpu", ranks=2)
    assert whole_recording("candidate", Path("two")).cell.world_size == 2


def missing(name: str) -> str:
    raise PackageNotFoundError(name)


@pytest.mark.usefixtures("in_folder")
def test_without_the_wheel_the_command_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With status 2 and the command that installs it, before the script starts."""
    monkeypatch.setattr(stand_in, "version", missing)
    with pytest.raises(SystemExit, match="2"):
        main(["record", "--out", "a", "--te", "cpu", "--", "train.py", "0.01"])
    assert "--te=cpu: expected Transformer Engine's wheel" in (said := capsys.readouterr().err)
    assert "pip install 'pytest-precision[te-cpu]'" in said


def test_where_it_cannot_run_auto_says_why_and_goes_on(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script runs on what is there; one that needs it fails by itself."""
    monkeypatch.setattr(stand_in, "version", missing)
    (in_folder / "train.py").write_text("raise KeyError('started')")
    with pytest.raises(KeyError, match="started"):
        main(["record", "--out", "a", "--te", "auto", "--", "train.py"])
    assert "no stand-in for Transformer Engine: expected" in capsys.readouterr().err
