"""A session of three tests around one fault: what comes before it, the fault, what comes after."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

# The sessions run in this process, which forgets afterwards what they have imported: torch cannot
# be imported twice, and a second copy of a module has other functions than the first.
import torch  # noqa: F401
from descriptors import open_descriptors
from slack import START, slack

import pytest_precision.plugin.fixtures  # noqa: F401
from pytest_precision import RankError
from pytest_precision.ranks.process import server

SUITE = """
    import pytest
    from around import process, sum_of_ranks
    from {module} import {functions}

    pytestmark = pytest.mark.world_size(2)

    FAULTS = [{faults}]

    def test_before(ranks):
        assert ranks.run(sum_of_ranks) == [3, 3]

    @pytest.mark.parametrize("number", range(len(FAULTS)))
    def test_fault(ranks, number):
        function, arguments = FAULTS[number]
        ranks.run(function, *arguments)

    def test_after(ranks):
        assert ranks.run(sum_of_ranks) == [3, 3]
"""

Fault = tuple[Callable[..., object], tuple[object, ...]]
"""A function that harms its ranks, and its arguments."""


@dataclass(frozen=True)
class Suffered:
    """How the test with the fault ended.

    Attributes:
        error: that failed it.
        seconds: that the test took.
    """

    error: RankError
    seconds: float

    @property
    def text(self) -> str:
        """All of the error."""
        return str(self.error)

    @property
    def headline(self) -> str:
        """The first line of the error."""
        return self.text.splitlines()[0]


Suffer = Callable[..., Suffered]


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Fails a test after which there is a process, a descriptor or a file more than before."""
    slack()
    # No test's own process: earlier ones may have ended it, or left one with modules preloaded.
    server.ensure_running()
    folder = tmp_path / "temporary"
    folder.mkdir()
    me = psutil.Process()
    processes, descriptors = set(me.children(recursive=True)), open_descriptors()
    # Not by monkeypatch, whose pending changes the sessions of these tests refuse.
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
    until = time.monotonic() + slack()
    while (left := set(me.children(recursive=True)) - processes) and time.monotonic() < until:
        time.sleep(0.02)
    assert left == set()
    gc.collect()  # other plugins leave theirs to the collector
    assert open_descriptors() <= descriptors
    assert list(folder.glob("pytest-precision-*")) == []


@pytest.fixture(scope="module")
def sufferings() -> dict[Fault, Suffered]:
    """How the faults of a module have ended that one session has run, one after the other."""
    return {}


@pytest.fixture
def suffer(
    pytester: pytest.Pytester,
    request: pytest.FixtureRequest,
    nothing_left: None,
    sufferings: dict[Fault, Suffered],
) -> Suffer:
    """Runs a session one of whose tests calls a function of the test's own module on two ranks.

    It fails unless the first and the last test of the session pass, and all others fail. These are
    the `FAULTS` of the module, if this one is among them: each has new ranks, and meets what the
    one before it has left.
    """

    def suffer(
        fault: Callable[..., object], *arguments: object, timeout: float = 30, mode: str = "reuse"
    ) -> Suffered:
        asked: Fault = fault, arguments
        faults: list[Fault] = getattr(request.module, "FAULTS", [])
        if asked not in faults:
            return run([asked], timeout, mode)[0]
        if asked not in sufferings:
            sufferings.update(zip(faults, run(faults, timeout, mode), strict=True))
        return sufferings[asked]

    def run(faults: list[Fault], timeout: float, mode: str) -> list[Suffered]:
        options = f"--precision-timeout={timeout}", f"--precision-ranks={mode}"
        text = SUITE.format(
            module=Path(request.module.__file__).stem,
            functions=", ".join({function.__name__ for function, _ in faults}),
            faults=", ".join(f"({function.__name__}, {given!r})" for function, given in faults),
        )
        pytester.makepyfile(test_session=text)
        recorder = pytester.inline_run(*options, "--precision-device=cpu")
        calls = recorder.getcalls("pytest_runtest_logreport")
        reports = [call.report for call in calls if call.report.when == "call"]
        outcomes = [report.outcome for report in reports]
        assert outcomes == ["passed", *["failed"] * len(faults), "passed"]
        recorder.assertoutcome(passed=2, failed=len(faults))
        errors = [
            call.call.excinfo.value
            for call in recorder.getcalls("pytest_runtest_makereport")
            if call.call.excinfo is not None
        ]
        for error, report in zip(errors, reports[1:-1], strict=True):
            assert isinstance(error, RankError), report.longreprtext
        return [
            Suffered(error.with_traceback(None), report.duration)
            for error, report in zip(errors, reports[1:-1], strict=True)
        ]

    return suffer


def _alive(number: int) -> bool:
    try:
        # A process without its parent is buried by init, which may be slow.
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@dataclass(frozen=True)
class Session:
    """A session in a process of its own, with one test that runs `around.busy`.

    Attributes:
        process: of pytest, the first of its process group, as a shell starts it.
        folder: where the ranks leave their numbers.
    """

    process: subprocess.Popen[str]
    folder: Path

    def until_busy(self) -> None:
        """Waits until one rank works and the other is stopped."""
        until = time.monotonic() + START
        while len(self.numbers) < 4 or not self._stopped:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < until
            time.sleep(0.02)

    @property
    def _stopped(self) -> bool:
        for member in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it was gone as soon as it was found
                if member.status() == psutil.STATUS_STOPPED:
                    return True
        return False

    @property
    def numbers(self) -> list[int]:
        """Of the ranks, each with the fork server's."""
        files = (self.folder / f"rank{rank}" for rank in range(2))
        return [int(n) for file in files if file.exists() for n in file.read_text().split()]


@pytest.fixture
def session_of(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], AbstractContextManager[Session]]:
    """Runs a suite and fails if it leaves a process or a file, whatever has ended it."""

    @contextmanager
    def session_of(suite: str) -> Iterator[Session]:
        folder = pytester.mkdir("numbers")
        temporary = pytester.mkdir("temporary")
        pytester.makepyfile(test_session=suite.format(folder=str(folder)))
        monkeypatch.setenv("TMPDIR", str(temporary))
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        command = [sys.executable, "-m", "pytest", "--precision-device=cpu"]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as process:
            session = Session(process, folder)
            try:
                yield session
            finally:
                process.kill()
        assert len(session.numbers) == 4
        until = time.monotonic() + slack()
        while (left := [*filter(_alive, session.numbers)]) and time.monotonic() < until:
            time.sleep(0.02)
        assert left == []
        assert list(temporary.glob("pytest-precision-*")) == []

    return session_of
