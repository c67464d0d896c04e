"""What Ctrl-C must wait for: it is neither lost nor does it leave half of something."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from written import read_report

from pytest_precision._interrupts import postponed, uncollected
from pytest_precision.report import json_file
from pytest_precision.report.json_file import JsonFile


def interrupt(times: int = 1) -> None:
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_comes_after_the_body() -> None:
    """Once, and as ever from then on."""
    done: list[int] = []

    def body() -> None:
        with postponed():
            interrupt(3)
            done.append(1)

    with pytest.raises(KeyboardInterrupt):
        body()
    assert done == [1]
    with pytest.raises(KeyboardInterrupt):
        interrupt()


def test_a_body_without_an_interrupt_changes_nothing() -> None:
    """Not in another thread either, where no handler can be set."""
    before = signal.getsignal(signal.SIGINT)
    with postponed():
        pass
    thread = threading.Thread(target=lambda: postponed().__enter__())
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is before


def test_what_is_imported_is_collected_neither_meanwhile_nor_later() -> None:
    """Where the import fails, all is as before."""
    gc.collect()  # what goes later may hold the last reference to something that is left out
    before = gc.get_freeze_count()
    meanwhile: list[bool] = []

    def body() -> None:
        with uncollected():
            meanwhile.append(gc.isenabled())
            raise ImportError

    with pytest.raises(ImportError):
        body()
    assert meanwhile == [False]
    assert gc.isenabled()
    assert gc.get_freeze_count() == before
    with uncollected():
        made = [{}]
    assert gc.isenabled()
    assert gc.get_freeze_count() > before
    assert not any(one is made for one in gc.get_objects())


def test_interrupts_in_a_write_leave_a_whole_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no temporary file beside it, however many they are."""
    file = JsonFile(tmp_path, {})
    synced = os.fsync

    def fsync(descriptor: int) -> None:
        interrupt(10)
        synced(descriptor)

    monkeypatch.setattr(json_file.os, "fsync", fsync)
    with pytest.raises(KeyboardInterrupt):
        file.plan(7)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    assert read_report(tmp_path / "report.json")["planned"] == 7


CONFTEST = """
import os, signal, sys

def interrupt(event, arguments, sent=[]):
    if event == "import" and arguments[0] == "numpy._core.multiarray" and not sent:
        sent.append(1)  # first: the interrupt leaves this function
        os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(interrupt)
"""

IMPORTS = """
import torch

def test_a():
    assert torch.ones(1).numpy()
"""


@pytest.mark.slow
def test_an_interrupt_while_torch_imports_numpy_ends_the_session(tmp_path: Path) -> None:
    """Torch's native code clears it: the tests would run as if nobody had asked for the end."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_a.py").write_text(IMPORTS)
    command = [sys.executable, "-m", "pytest", "--precision-matrix", "-p", "no:cacheprovider"]
    alone = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    ended = subprocess.run(command, cwd=tmp_path, **alone)
    assert ended.returncode == pytest.ExitCode.INTERRUPTED, ended.stdout + ended.stderr
    assert "KeyboardInterrupt" in ended.stdout
