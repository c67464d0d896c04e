"""Recordings go to other tools and come from them, as safetensors with a sidecar."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file

from pytest_precision.__main__ import main
from pytest_precision.exchange.conversion import PORTABLE

RecordFile = Callable[..., Path]
Output = pytest.CaptureFixture[str]


def test_what_is_exported_and_imported_agrees(record: RecordFile, capsys: Output) -> None:
    """Tensor by tensor, and one byte that another tool has changed is found where it is."""
    record("mine", "--steps", "2")
    assert main(["export", "mine", "--out", "x.safetensors"]) == 0
    assert main(["import", "x.safetensors", "--out", "theirs"]) == 0
    assert main(["compare", "theirs", "mine"]) == 0
    assert "tensors in 2 steps agree; criterion bitwise" in capsys.readouterr().out
    held = load_file("x.safetensors")
    held["2/optimizer_step/0/exp_avg/2.weight"][0, 0] += 1
    save_file(held, "x.safetensors")
    assert main(["import", "x.safetensors", "--out", "changed"]) == 0
    assert main(["compare", "changed", "mine"]) == 1
    said = capsys.readouterr().out
    assert "exp_avg differs at step 2 after optimizer_step" in said
    assert "No line is named: the candidate was imported, without a log of operations" in said
    assert "-m pytest_precision record" not in said


@pytest.mark.parametrize("out", [".", "..", "/"])
def test_a_folder_is_no_file(in_folder: Path, capsys: Output, out: str) -> None:
    """Also one whose path has no name; status 1 would say that two recordings differ."""
    with pytest.raises(SystemExit, match="2"):
        main(["export", "mine", "--out", out, "--force"])
    assert (
        f"expected the path of a file but got {out}, which is a folder" in capsys.readouterr().err
    )
    assert [path.name for path in in_folder.iterdir()] == ["train.py"]


def test_a_name_that_no_file_can_have_is_refused(record: RecordFile, capsys: Output) -> None:
    """Half of a surrogate pair, as in the name of a file that is no text; nothing is written."""
    script = Path("train.py").read_text()
    buffer = "model.register_buffer('\\udcff', torch.ones(1))\noptimizer ="
    Path("train.py").write_text(script.replace("optimizer =", buffer, 1))
    record("mine", "--steps", "1")
    with pytest.raises(SystemExit, match="2"):
        main(["export", "mine", "--out", "x.safetensors"])
    said = capsys.readouterr().err
    assert r"a safetensors file, but got '0/init/0/buffer/\udcff'; record the script with" in said
    assert not [*Path().glob("x.*")]


def test_what_cannot_be_written_whole_is_not_there(
    record: RecordFile, capsys: Output, files_of_at_most: Callable[[int], None]
) -> None:
    """The error names the file."""
    record("mine", "--steps", "1")
    files_of_at_most(4096)
    with pytest.raises(SystemExit, match="2"):
        main(["export", "mine", "--out", "x.safetensors"])
    assert "error: x.safetensors: " in capsys.readouterr().err
    assert not [*Path().glob("x.*")]


def test_an_export_that_cannot_be_written_leaves_the_one_before(
    record: RecordFile, files_of_at_most: Callable[[int], None]
) -> None:
    """Both of its files."""
    record("mine", "--steps", "1")
    assert main(["export", "mine", "--out", "x.safetensors"]) == 0
    before = {file.name: file.read_bytes() for file in Path().glob("x.*")}
    assert before.keys() == {"x.safetensors", "x.safetensors.json"}
    record("other", "--steps", "2", script=("train.py", "0.02", "9"))
    files_of_at_most(4096)
    with pytest.raises(SystemExit, match="2"):
        main(["export", "other", "--out", "x.safetensors"])
    assert {file.name: file.read_bytes() for file in Path().glob("x.*")} == before


def hook(folder: Path, lr: float) -> None:
    """Train by numpy as the script of the next test does, and write what a hook would show."""
    weight, data = np.ones((1, 4), np.float32), np.arange(4, dtype=np.float32)
    tensors: dict[str, Any] = {"w0": weight}
    moments = [{"step": 0, "phase": "init", "tensors": weights("w0")}]
    for step in (1, 2):
        out = weight @ data
        tensors[f"l{step}"] = np.asarray(out[0])
        weight = weight - np.float32(lr) * data
        tensors[f"w{step}"] = weight
        loss = {"kind": "loss", "name": "microbatch0", "key": f"l{step}", "local": True}
        moments.append({"step": step, "phase": "forward_backward", "tensors": [loss]})
        moments.append({"step": step, "phase": "optimizer_step", "tensors": weights(f"w{step}")})
    save_arrays(tensors, folder / "hook.safetensors")
    said = {"sidecar": 1, "environment": {"numpy": "2"}, "moments": moments}
    (folder / "hook.json").write_text(json.dumps(said))


def weights(key: str) -> list[dict[str, str]]:
    return [{"kind": kind, "name": "weight", "key": key} for kind in ("master", "param")]


def test_another_language_is_one_side(in_folder: Path, record: RecordFile, capsys: Output) -> None:
    """It shows losses and weights, and a wrong rate is seen in the first step."""
    for name, lr in (("right", 0.5), ("wrong", 0.25)):
        hook(in_folder, lr)
        assert main(["import", "hook.safetensors", "--out", name]) == 0
    (in_folder / "sgd.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(4, 1, bias=False)\n"
        "torch.nn.init.ones_(model.weight)\n"
        "sgd = torch.optim.SGD(model.parameters(), lr=0.5)\n"
        "for _ in range(2):\n"
        "    sgd.zero_grad()\n"
        "    model(torch.arange(4.0)).sum().backward()\n"
        "    sgd.step()\n"
    )
    record("mine", "--steps", "2", script=("sgd.py",))
    capsys.readouterr()
    shown = ("loss", "master", "param")
    main(["export", "mine", "--out", "mine.safetensors"])
    kinds = {
        one["kind"]
        for moment in json.loads(Path("mine.safetensors.json").read_text())["moments"]
        for one in moment["tensors"]
    }
    rest = [
        w
        for kind in sorted(kinds - {*shown})
        for w in ("--criterion", f"{kind}=unchecked(reason='no')")
    ]
    assert main(["compare", "right", "mine", *rest]) == 0, capsys.readouterr().out
    assert main(["compare", "wrong", "mine", *rest]) == 1
    assert "master differs at step 1 after optimizer_step" in capsys.readouterr().out


def test_digests_cannot_be_exported(
    record: RecordFile, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that keeps values is named."""
    monkeypatch.setattr("pytest_precision.recorders.scripts.loop_trace.SMALL_RUN", 0)
    record("mine", "--steps", "1")
    with pytest.raises(SystemExit, match="2"):
        main(["export", "mine", "--out", "x.safetensors"])
    said = capsys.readouterr().err
    assert "expected values of all steps but got a digest of" in said
    assert "--values 0-1 -- train.py 0.01 9" in said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sidecar": 2}, "sidecar"),
        ({"moments": [{"step": 1, "phase": "backward", "tensors": []}]}, "'backward' at step 1"),
        ({"moments": [{"step": 0, "phase": "init", "tensors": []}]}, "the last step"),
        (
            {"moments": [{"step": 1, "phase": "init", "tensors": weights("none")}]},
            "'init' at step 1",
        ),
        ({"moments": [{"step": 1, "phase": "optimizer_step", "tensors": weights("none")}]}, "none"),
        ({"world_size": 0}, "world_size"),
        ({"environment": {"torch": 2}}, "environment"),
    ],
)
def test_what_describes_no_run_is_refused(
    in_folder: Path, capsys: Output, change: dict[str, Any], words: str
) -> None:
    """With exit status 2 and what is wrong; what is left is no recording."""
    hook(in_folder, 0.5)
    said = json.loads((in_folder / "hook.json").read_text()) | change
    (in_folder / "hook.json").write_text(json.dumps(said))
    with pytest.raises(SystemExit, match="2"):
        main(["import", "hook.safetensors", "--out", "theirs"])
    told = capsys.readouterr().err
    assert "expected a recording to import but got hook.safetensors" in told
    assert words in told
    with pytest.raises(SystemExit, match="2"):
        main(["compare", "theirs", "theirs"])


@pytest.mark.parametrize(
    "held",
    [
        b"",
        b"\xff" * 16,
        (2).to_bytes(8, "little") + b"[]",
        (61).to_bytes(8, "little")
        + b'{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}} ',
    ],
)
def test_what_is_no_safetensors_file_is_refused(
    in_folder: Path, capsys: Output, held: bytes
) -> None:
    """Cut off, of another kind, or with tensors that do not fill their bytes."""
    hook(in_folder, 0.5)
    (in_folder / "hook.safetensors").write_bytes(held)
    with pytest.raises(SystemExit, match="2"):
        main(["import", "hook.safetensors", "--out", "theirs"])
    assert "expected a recording to import but got hook.safetensors" in capsys.readouterr().err


def test_a_dtype_that_readers_may_lack_comes_back(
    in_folder: Path, record: RecordFile, capsys: Output
) -> None:
    """The file has its bytes, and the sidecar what they are."""
    (in_folder / "waves.py").write_text(
        "import torch\n"
        "waves = dict(dtype=torch.complex64)\n"
        "model = torch.nn.Linear(2, 1, **waves)\n"
        "torch.nn.init.ones_(model.weight)\n"
        "torch.nn.init.zeros_(model.bias)\n"
        "sgd = torch.optim.SGD(model.parameters(), lr=0.125)\n"
        "for _ in range(2):\n"
        "    sgd.zero_grad()\n"
        "    model(torch.ones(2, **waves)).abs().sum().backward()\n"
        "    sgd.step()\n"
    )
    record("mine", "--steps", "2", script=("waves.py",))
    assert main(["export", "mine", "--out", "mine.safetensors"]) == 0
    assert main(["import", "mine.safetensors", "--out", "theirs"]) == 0
    assert main(["compare", "theirs", "mine"]) == 0
    assert "tensors in 2 steps agree; criterion bitwise" in capsys.readouterr().out
    assert {tensor.dtype for tensor in load_file("mine.safetensors").values()} <= PORTABLE
