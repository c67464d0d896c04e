"""How a launch ends when one of its processes does, or its user ends it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import launches
import psutil
import pytest
from slack import slack

SUITE = """
import os
import time
from pathlib import Path

import pytest


def works(folder):
    print("at work")
    Path(folder, "rank" + os.environ["RANK"]).write_text(str(os.getpid()))
    time.sleep(600)


@pytest.mark.world_size(2)
def test_works(ranks):
    assert ranks.run(os.getpid)
    ranks.run(works, os.getcwd())


@pytest.mark.world_size(1)
def test_on_the_controller(ranks):
    assert ranks.run(os.getpid)


@pytest.mark.world_size(2)
def test_needs_all(ranks):
    assert ranks.run(os.getpid)
"""

SOON = 10.0
"""Seconds in which everything has ended: torchrun looks every 0.1 s, and a group has its grace."""


@contextlib.contextmanager
def busy(
    folder: Path, mode: str
) -> Iterator[tuple[launches.Session, list[psutil.Popen], list[psutil.Process]]]:
    """A launch while its ranks work on a job: what was started, and the pytest process of each
    rank. It ends soon after that.
    """
    (folder / "test_suite.py").write_text(SUITE)
    command = launches.commands(mode, "--junit-xml=junit.xml", "-p", "no:cacheprovider")
    with launches.started(folder, command) as (session, running):
        files = [folder / "rank0", folder / "rank1"]
        deadline = time.monotonic() + launches.SECONDS
        while not all(file.exists() and file.read_text() for file in files):
            assert time.monotonic() < deadline, (folder / "output").read_text()
            assert all(process.poll() is None for process in running)
            time.sleep(0.1)
        launches.remember(session, running)
        yield session, running, [pytest_of(int(file.read_text())) for file in files]
        asked = time.monotonic()
    assert time.monotonic() - asked < SOON + slack()


def pytest_of(rank: int) -> psutil.Process:
    """The process that a rank belongs to: the fork server is between them."""
    process = psutil.Process(rank).parent().parent()
    assert "pytest" in process.cmdline()
    return process


def test_a_killed_controller(tmp_path: Path) -> None:
    """The others end by themselves, and with them all ranks."""
    with busy(tmp_path, "Slurm") as (session, _, (controller, _)):
        controller.kill()
    assert session.statuses == [-signal.SIGKILL, 0]


def test_a_killed_host_where_nobody_ends_the_rest(tmp_path: Path) -> None:
    """The tests that need it fail with the cause, the others run, and the report is whole."""
    with busy(tmp_path, "Slurm") as (session, _, (_, host)):
        host.kill()
    assert session.statuses == [1, -signal.SIGKILL]
    cases = ElementTree.parse(tmp_path / "junit.xml").iter("testcase")
    failures = {case.get("name"): case.findtext("failure", "") for case in cases}
    assert "rank 1 of 2 in test_suite:works died" in failures["test_works"]
    assert "End of the output of rank 1:\nE       at work" in failures["test_works"]
    assert failures["test_on_the_controller"] == ""
    assert "rank 1 of 2 in the start of the group died: its process" in failures["test_needs_all"]


# Where nobody ends the rest, it ends as well; and an interrupted torchrun ends its processes.
@pytest.mark.nightly
def test_a_killed_host_of_torchrun(tmp_path: Path) -> None:
    """The launcher ends the rest, and nothing holds it up."""
    with busy(tmp_path, "torchrun") as (session, _, (_, host)):
        host.kill()
    assert session.statuses == [1]


def test_a_killed_torchrun(tmp_path: Path) -> None:
    """Its processes get no signal, and nobody waits for them; they end, and all ranks with them."""
    with busy(tmp_path, "torchrun") as (session, running, _):
        running[0].kill()
    assert session.statuses == [-signal.SIGKILL]


def test_an_interrupt(tmp_path: Path) -> None:
    """All processes get it; the controller alone acts on it, and reports."""
    with busy(tmp_path, "torchrun") as (session, running, _):
        running[0].send_signal(signal.SIGINT)
    assert session.output.count("KeyboardInterrupt\n") == 1, session.output
    assert "no tests ran in" in session.output
    assert ElementTree.parse(tmp_path / "junit.xml").getroot().find("testsuite") is not None


def test_a_temporary_folder_of_each_node(tmp_path: Path) -> None:
    """Ranks leave files for each other: who waits for one that does not see the folder is told."""
    alone = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    temp = tmp_path / "temp"
    temp.mkdir()
    own = f'mount -t tmpfs none {temp} && exec "$@"'
    if not shutil.which("unshare") or subprocess.run([*alone, own, "sh", "true"]).returncode:
        pytest.skip("this user cannot mount a folder for one process")
    (tmp_path / "test_suite.py").write_text(SUITE)
    controller, host = launches.commands("Slurm", "-p", "no:cacheprovider")
    here = {"TMPDIR": os.fspath(temp)}
    elsewhere = ([*alone, own, "sh", *host[0]], {**host[1], **here})
    both = [(controller[0], {**controller[1], **here}), elsewhere]
    asked, told = time.monotonic(), ""
    words = f"all processes must see the folder {temp}/pytest-precision-launch-"
    with launches.started(tmp_path, both) as (_, running):
        while told.count(words) < 2 and time.monotonic() - asked < launches.SECONDS:
            time.sleep(0.2)
            told = (tmp_path / "output").read_text()
        for process in running:
            process.kill()
    assert told.count(words) == 2
    assert told.count("(set TMPDIR to one on a shared filesystem)") == 2


def test_what_a_launch_left_whose_processes_have_not_met_goes(tmp_path: Path) -> None:
    """Rank 1 of 2 is killed while it waits; the next session removes its folder."""
    temp = tmp_path / "temp"
    temp.mkdir()
    (tmp_path / "test_suite.py").write_text(SUITE)
    settings = {"cwd": tmp_path, "stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    environment = {**launches.clean(), "TMPDIR": str(temp)}
    alone = {**environment, **launches.of_srun(1, launches.free_port())}
    killed = subprocess.Popen(launches.PYTEST, env=alone, start_new_session=True, **settings)
    try:
        until = time.monotonic() + launches.SECONDS
        while not [*temp.glob("pytest-precision-launch-*/rank1.json")]:
            assert killed.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    assert [*temp.glob("pytest-precision-launch-*")]
    command = [*launches.PYTEST, "-k", "controller", "-p", "no:cacheprovider"]
    done = subprocess.run(command, env=environment, timeout=launches.SECONDS, **settings)
    assert done.returncode == 0
    assert [*temp.glob("pytest-precision-*")] == []
