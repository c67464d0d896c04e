"""What runs the ranks may end in any way, and may be any kind of process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from slack import slack

from pytest_precision._folders import short_folder

CONTROLLER = """\
import os, sys
sys.path[:0] = {folders!r}
import test_controller
from pytest_precision.ranks import RankPool
from pytest_precision.trace.cache import TraceCache

traces = TraceCache()
ranks = RankPool(timeout=60)
ranks.run(2, os.getpid)
assert "torch" not in sys.modules, "a controller does not import torch"
print("ready", flush=True)
{then}
"""


def work(folder):
    """Rank 0 is busy and has a child, rank 1 is stopped."""
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGSTOP)
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    subprocess.Popen(sleep, start_new_session=True)
    Path(folder, "busy").touch()
    while True:
        pass


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short name: the fork server's socket lies in the controller's temporary folder."""
    with tempfile.TemporaryDirectory(prefix="ranks-") as name:
        yield Path(name)


@contextlib.contextmanager
def controller(
    folder: Path, then: str
) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A script with two ranks, which does `then`; all that it has started ends with it.

    It has no guard around its main part: ranks do not import it.
    """
    script = folder / "script.py"
    folders = [str(parent) for parent in Path(__file__).parents[:2]]
    script.write_text(CONTROLLER.format(folders=folders, then=then))
    (folder / "temp").mkdir()
    settings = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    settings |= {"stderr": subprocess.PIPE, "start_new_session": True}
    settings["env"] = {**os.environ, "TMPDIR": str(folder / "temp")}
    members = []
    with subprocess.Popen([sys.executable, script], **settings) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            members += psutil.Process(process.pid).children(recursive=True)
            assert len(members) == 4, "two ranks, the fork server and the resource tracker"
            yield process, members
            process.wait(10)
        finally:
            process.kill()
    _, alive = psutil.wait_procs(members, timeout=slack())
    assert alive == []


def left_in(folder: Path) -> list[Path]:
    """What lies in the temporary folder of a controller, except for torch's cache of the user."""
    found = (folder / "temp").iterdir()
    return [path for path in found if not path.name.startswith("torchinductor")]


def with_its_job(process):
    """As a terminal that hangs up, then as a shell that ends a job: the fork server hears it."""
    os.killpg(process.pid, signal.SIGHUP)
    os.killpg(process.pid, signal.SIGTERM)


@pytest.mark.parametrize("end", [subprocess.Popen.kill, with_its_job])
def test_a_killed_controller_leaves_nothing(folder, end):
    """Whatever its ranks are doing, and what they have started; its folders go with them."""
    job = f"ranks.run(2, test_controller.work, {str(folder)!r})"
    with controller(folder, job) as (process, members):
        until = time.monotonic() + slack()
        stopped = False
        while not (stopped and (folder / "busy").exists()) and time.monotonic() < until:
            time.sleep(0.02)
            stopped = psutil.STATUS_STOPPED in [member.status() for member in members]
        members += set(psutil.Process(process.pid).children(recursive=True)) - set(members)
        assert len(members) == 5
        end(process)
    assert not left_in(folder)


def test_a_controller_that_just_exits_leaves_nothing(folder):
    """No handler runs in `os._exit`: what it has started removes its folders."""
    with controller(folder, "sys.stdin.readline(); os._exit(0)") as (process, _):
        process.stdin.write("\n")
        process.stdin.flush()
    assert not left_in(folder)


def test_a_controller_that_forgets_to_close_ends_in_time(folder):
    """The fallback at exit ends the ranks; multiprocessing would wait for them for ever.

    A long path of the temporary folder is no obstacle: the fork server's socket goes elsewhere.
    """
    long = folder / ("x" * 90)
    long.mkdir()
    with controller(long, "sys.stdin.readline()") as (process, _):
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait(5) == 0
        assert process.stderr.read() == ""
    assert not left_in(long)


def test_a_folder_for_a_socket_has_a_short_path(tmp_path):
    """The first that fits; where none does, the error says how long it may be."""
    long = str(tmp_path / ("x" * 90))
    assert short_folder("/tmp") == "/tmp"
    assert short_folder(long, ("/missing", "/tmp")) == "/tmp"
    with pytest.raises(OSError, match=r"at most \d+ bytes, for a socket, but got .*set TMPDIR"):
        short_folder(long, ())


def test_xdist_workers_and_files_that_have_no_name(tmp_path):
    """In a worker of xdist, with `--import-mode=importlib`, a test file's own functions travel."""
    folder = tmp_path / "unit"
    folder.mkdir()
    (folder / "helper.py").write_text("class Answer(int): pass\n")
    (folder / "test_odd.py").write_text(
        "import os\n"
        "from pytest_precision.ranks import RankPool\n"
        "from .helper import Answer\n"
        "def answer(given): return Answer(given + int(os.environ['RANK']))\n"
        "def test_it():\n"
        "    ranks = RankPool(timeout=60)\n"
        "    assert ranks.run(2, answer, Answer(1)) == [1, 2]\n"
        "    ranks.close()\n"
    )
    command = [sys.executable, "-m", "pytest", "-n", "1", "--import-mode=importlib", "-q", folder]
    # A copy that is not installed is found by what is absolute here: the folder is another one.
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
    settings = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": path}, "timeout": 60}
    done = subprocess.run(command, capture_output=True, text=True, **settings)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
