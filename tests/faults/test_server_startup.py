"""The end of pytest while the process that starts ranks is itself still starting."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from slack import START, slack

SUITE = """
    import os
    import pytest

    @pytest.mark.world_size(1)
    def test_a(ranks):
        ranks.run(os.getpid)
"""

IMPORT = """
import os, sys, time
if "forkserver" in sys.orig_argv[-1]:  # pytest may import the module, too
    open({sign!r}, "w").write(str(os.getpid()))
time.sleep(600)
"""

STARTS = """
import os, sys, time
if "forkserver" in sys.orig_argv[-1]:
    controller = os.getppid()
    open({sign!r}, "w").write(str(os.getpid()))
    while os.getppid() == controller:
        time.sleep(0.02)
"""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A temporary folder whose path is short enough for the server's socket."""
    with tempfile.TemporaryDirectory(prefix="short-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def starting(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> Iterator[Callable[..., tuple[subprocess.Popen[str], psutil.Process]]]:
    """Start a session whose fork server runs a module and gets no further, and wait until then.

    Afterwards nothing is left of it, neither a process nor a folder.
    """
    slack()  # measured before this session's own fork server would find the modules below
    sign = pytester.path / "sign"
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("PYTHONPATH", str(pytester.path), prepend=os.pathsep)
    pytester.makepyfile(test_session=SUITE)
    started: list[subprocess.Popen[str]] = []

    def start(name: str, text: str, *options: str) -> tuple[subprocess.Popen[str], psutil.Process]:
        (pytester.path / f"{name}.py").write_text(text.format(sign=str(sign)))
        command = [sys.executable, "-m", "pytest", *options]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        process = subprocess.Popen(command, text=True, start_new_session=True, **pipes)
        started.append(process)
        until = time.monotonic() + START
        while not (sign.exists() and sign.read_text()):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)
        assert [*temporary.glob("pytest-precision-server-*")]
        return process, psutil.Process(int(sign.read_text()))

    yield start
    for process in started:
        process.kill()
        process.wait()
    until = time.monotonic() + slack()
    while _left(started[0].pid, temporary) and time.monotonic() < until:
        time.sleep(0.02)
    left = _left(started[0].pid, temporary)
    for found in left:
        if isinstance(found, psutil.Process):
            found.kill()
    assert left == []


def _left(session: int, temporary: Path) -> list[object]:
    found: list[object] = [*temporary.glob("pytest-precision-*")]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


# pytest has no handler of SIGTERM, which ends it as SIGKILL does.
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)]
)
def test_an_end_while_the_server_imports(starting, number):
    """It does not go on importing what nobody needs any more, and removes what both have made.

    The first module that it imports is the one that never comes to its end here.
    """
    process, server = starting("torch", IMPORT)
    process.send_signal(number)
    process.wait()
    server.wait(slack())


# What gets SIGTERM first is killed, too.
@pytest.mark.parametrize("whole", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_an_end_before_the_server_knows_its_parent(starting, whole):
    """It is told whose folders to remove; a signal to the whole session does not end it first.

    A batch system sends SIGTERM to all processes and SIGKILL to those that are left.
    """
    process, _ = starting("sitecustomize", STARTS)
    if whole:
        os.killpg(process.pid, signal.SIGTERM)
    process.kill()
    process.wait()


def test_an_interrupt_while_the_server_imports(starting):
    """Ctrl-C goes to all processes of the terminal: pytest ends the server, in its own time."""
    process, server = starting("slow_framework", IMPORT, "-o", "precision_preload=slow_framework")
    server.send_signal(signal.SIGINT)
    with pytest.raises(psutil.TimeoutExpired):
        server.wait(0.5)
    process.send_signal(signal.SIGINT)
    process.wait(slack())
