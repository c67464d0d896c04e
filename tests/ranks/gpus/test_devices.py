"""Which GPU a rank gets, and whose turn it is: on plain data, and on locks of real processes."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slack import slack

from pytest_precision import DevicesBusyError
from pytest_precision.ranks.gpus import devices
from pytest_precision.ranks.gpus.devices import (
    backend,
    chosen,
    held,
    worker_number,
)

HOLDER = """\
import sys, time
from pathlib import Path
from pytest_precision.ranks.gpus.devices import held
with held([{name!r}], 5, Path({folder!r})):
    print("has it", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path):
    """A process that has the device `gpu-b` until its input ends."""
    command = [sys.executable, "-c", HOLDER.format(name="gpu-b", folder=str(tmp_path))]
    settings = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=Path(__file__).parents[3], **settings) as process:
        try:
            assert process.stdout.readline() == "has it\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("ranks", "per_device", "worker", "names"),
    [
        (2, 1, 0, ("7", "5")),
        (2, 1, 1, ("6", "4")),
        (2, 1, 2, ("7", "5")),
        (3, 1, 1, ("4", "7", "5")),
        (4, 2, 0, ("7", "5", "6", "4")),
        (5, 1, 0, ()),
        (8, 2, 3, ("7", "5", "6", "4")),
        (9, 2, 0, ()),
    ],
)
def test_devices_of_a_group(ranks, per_device, worker, names):
    """One each while there are enough; workers start side by side; too many get none."""
    assert chosen(("7", "5", "6", "4"), ranks, per_device, worker) == names


@given(st.integers(0, 8), st.integers(1, 16), st.integers(1, 3), st.integers(0, 9))
def test_devices_are_the_callers_own_and_shared_only_if_asked(count, ranks, per_device, worker):
    """Each once, none from elsewhere, and no more ranks on one than may be."""
    names = tuple(f"gpu{number}" for number in range(count))
    found = chosen(names, ranks, per_device, worker)
    expected = min(ranks, count) if ranks <= count * per_device else 0
    assert len(set(found)) == len(found) == expected
    assert set(found) <= set(names)


@pytest.mark.parametrize(("name", "number"), [("gw3", 3), (None, 0), ("", 0), ("master", 0)])
def test_number_of_a_worker(name, number):
    """By its name; anything else is the first."""
    assert worker_number(name) == number


@pytest.mark.parametrize(
    ("device", "shared", "words"),
    [
        ("cpu", False, "gloo"),
        ("cuda", False, "cpu:gloo,cuda:nccl"),
        ("cuda", True, "cpu:gloo,cuda:gloo"),
    ],
)
def test_backend(device, shared, words):
    """Between ranks that share a GPU, gloo: nccl refuses them."""
    assert backend(device, shared) == words


def test_a_device_is_waited_for_with_a_message(tmp_path, holder, caplog):
    """Who has it, once; and it is had when the other lets go."""
    busy = pytest.raises(DevicesBusyError)
    with caplog.at_level(logging.WARNING), busy, held(["gpu-b"], 0.2, tmp_path):
        pytest.fail("both have it")
    assert caplog.messages == [f"waiting for device gpu-b, which process {holder.pid} holds"]
    holder.stdin.write("\n")
    holder.stdin.flush()
    with held(["gpu-b"], 5, tmp_path):
        pass


def test_a_wait_is_bounded(tmp_path, holder):
    """By the deadline, with an error that names device, holder and seconds."""
    started = time.monotonic()
    words = rf"device gpu-b to be free within 0\.3 s but process {holder.pid} still has it"
    with pytest.raises(DevicesBusyError, match=words), held(["gpu-a", "gpu-b"], 0.3, tmp_path):
        pytest.fail("both have it")
    assert 0.3 <= time.monotonic() - started < 0.3 + slack()
    with held(["gpu-a"], 0.1, tmp_path):
        pass  # what was taken before was let go


def test_what_is_no_number_is_no_holder(tmp_path, holder):
    """Anybody can write to the file of a lock, also what steers a terminal."""
    [lock] = tmp_path.glob("*gpu-b.lock")
    lock.write_text("\x1b[31m")
    with pytest.raises(DevicesBusyError, match="process unknown"), held(["gpu-b"], 0.1, tmp_path):
        pytest.fail("both have it")


def test_a_dead_holder_has_nothing(tmp_path, holder):
    """The kernel lets go of the lock."""
    holder.kill()
    holder.wait()
    with held(["gpu-b"], 0.1, tmp_path):
        pass


def test_other_devices_are_free(tmp_path, holder):
    """Only the same device is waited for; ranks without one wait for nothing."""
    with held(["gpu-a", "gpu-a", ""], 0.1, tmp_path), held([], 0.1, tmp_path / "missing"):
        assert [path.name for path in tmp_path.iterdir() if "gpu-a" in path.name] == [
            "pytest-precision-device-gpu-a.lock"
        ]


def test_containers_meet_in_a_folder_that_they_share(tmp_path, monkeypatch, caplog):
    """Each has a `/tmp` of its own: with it alone, both would have the device at once."""
    shared = tmp_path / "shared"
    shared.mkdir()
    program = HOLDER.replace(", Path({folder!r})", "").format(name="gpu-c")
    command = [sys.executable, "-c", program]
    settings = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    monkeypatch.setenv("PRECISION_DEVICE_LOCKS", str(shared))
    with subprocess.Popen(command, cwd=Path(__file__).parents[3], **settings) as other:
        assert other.stdout.readline() == "has it\n"
        monkeypatch.setattr(devices, "LOCKS", tmp_path)  # this container's own
        with pytest.raises(DevicesBusyError, match=f"process {other.pid}"), held(["gpu-c"], 0.1):
            pass
        monkeypatch.delenv("PRECISION_DEVICE_LOCKS")
        with held(["gpu-c"], 0.1):
            other.kill()


@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_in_place_of_a_lock_is_not_followed(tmp_path, dangling):
    """Somebody else may have made it, in a folder that all can write to."""
    target = tmp_path / "target"
    if not dangling:
        target.write_text("precious")
    (tmp_path / "pytest-precision-device-gpu-a.lock").symlink_to(target)
    with pytest.raises(OSError, match=r"gpu-a\.lock"), held(["gpu-a"], 0.1, tmp_path):
        pass
    assert (target.read_text() == "precious") if not dangling else not target.exists()


def test_text_of_others_in_a_lock_stays(tmp_path):
    """Only the number of a process is replaced by another one; the lock holds all the same."""
    lock = tmp_path / "pytest-precision-device-gpu-b.lock"
    for before, after in (("precious", "precious"), ("12345", str(os.getpid()))):
        lock.write_text(before)
        with held(["gpu-b"], 1.0, tmp_path):
            assert lock.read_text() == after
