"""Recordings at addresses of fsspec are made and compared as those in folders are."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from pytest_precision import Recorder, RecordingError
from pytest_precision.__main__ import main

SECRET = "hidden-word"


@pytest.fixture(autouse=True)
def memory() -> Iterator[MemoryFileSystem]:
    """The file system of memory:// of this process, empty before and after."""
    files = MemoryFileSystem()
    MemoryFileSystem.store.clear()
    yield files
    MemoryFileSystem.store.clear()


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return why a command is refused, in one line."""
    with pytest.raises(SystemExit) as ended:
        main([*words])
    assert ended.value.code == 2
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("scheme", ["memory://run", "file://{folder}/run", "local://{folder}/run"])
def test_an_address_is_a_folder(
    record: Callable[..., Path],
    in_folder: Path,
    scheme: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same recording is made, nothing stays here, and messages name the address."""
    address = scheme.format(folder=in_folder)
    assert record("a", "--steps", "2") == in_folder / "a"
    record(address, "--steps", "2")
    assert f"recorded 2 steps of train.py in {address}: " in capsys.readouterr().err
    assert main(["compare", address, "a"]) == 0
    assert f"{address} against a: " in capsys.readouterr().out
    assert main(["export", address, "--out", "b.safetensors"]) == 0
    assert main(["compare", address, address]) == 1
    assert "are the same recording" in capsys.readouterr().out
    assert "run, which has " in refused(
        capsys, "record", "--out", address, "--", "train.py", "0.01", "9"
    )


def test_ranks_send_what_each_has(in_folder: Path, on_two_ranks: Callable[..., None]) -> None:
    """No rank sees the files of the others, and together they are whole."""
    words = ["--steps", "2", "--", "train.py", "0.01", "9"]
    on_two_ranks("record", "--out", f"file://{in_folder}/a", *words)
    on_two_ranks("record", "--out", "b", *words)
    assert main(["compare", f"file://{in_folder}/a", "b"]) == 0
    assert main(["join", f"file://{in_folder}/a", "--out", "c"]) == 0
    assert main(["compare", "c", "b"]) == 0


def test_an_error_sends_the_steps_before(
    record: Callable[..., Path], in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whole steps of them are compared."""
    record("memory://a")
    script = in_folder / "train.py"
    script.write_text(
        script.read_text().replace(
            "    optimizer.step()", "    optimizer.step()\n    1 / (2 - step)"
        )
    )
    with pytest.raises(ZeroDivisionError):
        record("memory://b")
    capsys.readouterr()
    assert main(["compare", "memory://b", "memory://a"]) == 2
    ended = "ended after step 2, by ZeroDivisionError"
    assert ended in capsys.readouterr().out
    assert ended in refused(capsys, "export", "memory://b", "--out", "b.safetensors")
    MemoryFileSystem.store.pop("/b/recording.json")
    text = refused(capsys, "compare", "memory://b", "memory://a")
    assert "expected the folder of a recording but got memory://b, which has no" in text


def test_no_credentials_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """An address with some is refused, without them."""
    for address, what in (
        (f"s3://user:{SECRET}@bucket/a", "password"),
        (f"abfs://bucket/a?signature={SECRET}", "query"),
    ):
        text = refused(capsys, "compare", address, "b")
        assert SECRET not in text
        assert f"an address without credentials but got {address.partition(':')[0]}://" in text
        assert f"with a {what}" in text


def test_what_has_to_be_installed_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a file system, of an unknown one, and of fsspec itself."""
    assert "Install s3fs to access S3" in refused(capsys, "compare", "s3://bucket/a", "b")
    text = refused(capsys, "compare", "memory://none", "b")
    assert "an address that can be used but got memory://none (FileNotFoundError" in text
    assert "Protocol not known: zzz" in refused(capsys, "compare", "zzz://bucket/a", "b")
    assert "expected a folder of this machine" in refused(capsys, "join", "a", "--out", "s3://b")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    text = refused(capsys, "compare", "s3://bucket/a", "b")
    assert "pip install 'pytest-precision[fsspec]'" in text


def recorder_of(rate: float, out: str) -> tuple[Recorder, Callable[[], int]]:
    """Return a recorder of three steps, and what makes the next one."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), rate)
    recorder = Recorder(model, optimizer, out=out, steps=3)

    def step() -> int:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return recorder.step()

    return recorder, step


def test_a_recorder_sends_to_an_address(
    in_folder: Path, memory: MemoryFileSystem, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it has sent while it ran goes when all is there, and nothing else may be there."""
    for out, rate in (("a", 0.1), ("memory://a", 0.1), ("memory://b", 0.2)):
        recorder, step = recorder_of(rate, out)
        recorder.start()
        assert [step() for _ in range(4)] == [1, 2, 3, 3]
    names = sorted(file.rpartition("/")[2] for file in memory.find("/a"))
    assert names == sorted(path.name for path in (in_folder / "a").iterdir())
    assert main(["compare", "memory://a", "a"]) == 0
    assert main(["compare", "memory://b", "memory://a"]) == 1
    assert "memory://b against memory://a: lr differs" in capsys.readouterr().out
    with pytest.raises(RecordingError, match="memory://a, which has rank0"):
        recorder_of(0.1, "memory://a")[0].start()


def test_each_step_is_at_the_address_when_it_has_ended(
    in_folder: Path, memory: MemoryFileSystem, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rank that is killed sends nothing more; up to there, it is compared."""
    recorder, step = recorder_of(0.1, "a")
    with recorder:
        while step() < 3:
            pass
    recorder, step = recorder_of(0.1, "memory://b")
    with recorder:
        step()
        step()  # until the next one begins, the loop may still change its learning rates
        assert main(["compare", "memory://b", "a"]) == 2
        assert "ended after step 1, and has not said why" in capsys.readouterr().out
        assert main(["join", "memory://b", "--out", "c"]) == 0
        memory.rm_file("/b/rank0.journal.part000000")
        assert "rank 0 of 1 has not finished" in refused(capsys, "compare", "memory://b", "a")
        step()
    assert main(["compare", "memory://b", "a"]) == 0


@pytest.mark.nightly
def test_a_killed_rank_has_sent_its_steps(
    record: Callable[..., Path], in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By SIGKILL, in its third step, under the command."""
    record("a")
    killing = "    optimizer.step()\n    step == 2 and os.kill(os.getpid(), 9)"
    text = (in_folder / "train.py").read_text().replace("    optimizer.step()", killing)
    (in_folder / "killed.py").write_text(f"import os\n{text}")
    words = ["record", "--out", f"file://{in_folder}/b", "--", "killed.py", "0.01", "9"]
    ended = subprocess.run([sys.executable, "-m", "pytest_precision", *words], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert main(["compare", f"file://{in_folder}/b", "a"]) == 2
    assert "ended after step 2, and has not said why" in capsys.readouterr().out


def test_an_address_that_takes_nothing_ends_the_first_step(
    in_folder: Path, memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later, what could not be sent is sent after the next step, or at the end."""

    def fails(*_: object, **__: object) -> None:
        raise PermissionError("read only")

    words = r"memory://a \(PermissionError: read only\)"
    recorder, step = recorder_of(0.1, "memory://a")
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", fails)
        with pytest.raises(RecordingError, match=words), recorder:
            step()
    recorder, step = recorder_of(0.1, "memory://b")
    with recorder:
        step()
        sent = memory.find("/b")
        with monkeypatch.context() as patch:
            patch.setattr(MemoryFileSystem, "pipe_file", fails)
            step()
        assert memory.find("/b") == sent
        step()
    assert main(["export", "memory://b", "--out", "b.safetensors"]) == 0
