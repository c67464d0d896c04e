"""Recordings at addresses of fsspec are made and compared as those in folders are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from pytest_precision import Recorder
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


def test_a_recorder_takes_folders_alone() -> None:
    """It would make one with the name of the address."""
    model = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="a folder of this machine but got out=s3://bucket/a"):
        Recorder(model, torch.optim.SGD(model.parameters()), out="s3://bucket/a")
