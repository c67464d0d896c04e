"""record --te: a script that trains with Transformer Engine is recorded over the stand-in."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import te_wheel

from pytest_precision.__main__ import main
from pytest_precision.te import stand_in
from pytest_precision.trace.whole_recording import whole_recording

SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
import transformer_engine.pytorch as te
from transformer_engine.common.recipe import MXFP8BlockScaling

if "RANK" in os.environ:
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

RECORD = ("-m", "pytest_precision", "record", "--steps", "2")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a script that trains."""
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recorded(name: str, *options: str, launcher: tuple[str, ...] = ()) -> str:
    """Record the script in processes of their own; return what they say."""
    words = (*launcher, *RECORD, "--out", name, *options, "--", "train.py", "0.01")
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.slow
@te_wheel.NEEDED
@pytest.mark.usefixtures("in_folder")
def test_a_script_is_recorded_over_the_stand_in() -> None:
    """The recording and what is printed say so, and two runs agree."""
    said = recorded("a", "--te", "cpu")
    recorded("b", "--te=auto")
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
@pytest.mark.usefixtures("in_folder")
def test_ranks_of_a_launch_are_recorded_over_the_stand_in() -> None:
    """Each has the stand-in, and DDP reduces the gradients of Transformer Engine's layers."""
    recorded("two", "--te", "cpu", launcher=TORCHRUN)
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
