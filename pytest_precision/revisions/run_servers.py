"""Start runs of a script as forks of servers that have imported torch: see `run_server`."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

from pytest_precision._folders import OwnFolder
from pytest_precision.ranks.state.environment import OF_ONE_TEST
from pytest_precision.revisions.installation import Installation, link_package
from pytest_precision.revisions.run_server import (
    NOT_FORKED,
    PACKED_NUMBER,
    CallRequest,
    RunRequest,
    exactly,
    send,
)

Seat = Literal["candidate", "reference"]
"""Side of a comparison. Each has a server of its own: what depends on the seed of hashes or on
addresses differs between two interpreters, and would be alike in two forks of one."""

SERVER_SECONDS = 5.0
"""Time that a server has to end by itself."""

OF_A_LAUNCH = "RANK"
"""Variable of a launch, each of whose processes is a new interpreter."""


class Running(Protocol):
    """A process that was started: a part of `subprocess.Popen`."""

    def poll(self) -> int | None:
        """Return its exit status, minus its signal, or None while it runs."""

    def kill(self) -> None:
        """Kill it."""

    def wait(self) -> int:
        """Wait for its end; return its exit status."""


class ForkedRun:
    """A process that a server has forked.

    Args:
        server: forked it.
        process: its number.
    """

    def __init__(self, server: RunServer, process: int) -> None:
        self._server = server
        self._process = process
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return its exit status, minus its signal, or None while it runs."""
        if self._status is None and self._server.has_spoken():
            self._status = self._server.status()
        return self._status

    def kill(self) -> None:
        """Kill it, unless it has ended: until its status is read, nobody else has its number."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):  # its server was killed, and it with it
                os.kill(self._process, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for its end; return its exit status."""
        if self._status is None:
            self._status = self._server.status()
        return self._status


class RunServer:
    """The handle of a server; the constructor starts it, and does not wait for it.

    Args:
        surroundings: those of this process, which it inherits.
        folder: in which it starts.

    Attributes:
        surroundings: as given.
        package: folder from which it has imported this package.
        idle: whether it waits for a request, or will once it has imported torch.
    """

    def __init__(self, surroundings: object, folder: Path) -> None:
        self.surroundings = surroundings
        self.idle = True
        self._folder = OwnFolder("runs-")
        self.package = link_package(self._folder.path / "plugin")
        installation = Installation("", Path(sys.executable))
        self._line, theirs = socket.socketpair()
        with theirs:
            words = installation.words(
                self.package, "pytest_precision.revisions.run_server:serve_runs"
            )
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [*words, str(number)], cwd=folder, stdout=2, pass_fds=[number]
            )

    @property
    def alive(self) -> bool:
        """Whether its process has not ended."""
        return self._process.poll() is None

    def run(self, function: str, arguments: Sequence[str], cwd: Path, side: Installation) -> int:
        """Start a run of the command line; return the process number, or NOT_FORKED."""
        words = (*side.words(self.package, function), *arguments)
        variables = {name: os.environ[name] for name in OF_ONE_TEST if name in os.environ}
        return self.ask(RunRequest(words, str(cwd), side.places, variables), [0, 2, 2])

    def ask(self, request: RunRequest | CallRequest, streams: list[int]) -> int:
        """Send a request; return the number of the fork that serves it, or NOT_FORKED."""
        self.idle = False
        try:
            send(self._line, request, streams)
            number = int(PACKED_NUMBER.unpack(exactly(self._line, PACKED_NUMBER.size))[0])
        except (EOFError, OSError):
            return NOT_FORKED
        self.idle = number == NOT_FORKED
        return number

    def has_spoken(self) -> bool:
        """Return whether the status of its fork can be read, or it has ended."""
        return bool(select.select([self._line], [], [], 0)[0])

    def status(self) -> int:
        """Wait for the end of its fork; return the exit status, or minus the signal."""
        try:
            status = int(PACKED_NUMBER.unpack(exactly(self._line, PACKED_NUMBER.size))[0])
            self._line.sendall(b"\n")
        except (EOFError, OSError):  # its fork ends with it
            return -signal.SIGKILL
        self.idle = True
        return status

    def close(self) -> None:
        """End it, and its fork if that still runs."""
        self._line.close()
        try:
            if not self.idle:
                self._process.kill()
            self._process.wait(SERVER_SECONDS)
        except subprocess.TimeoutExpired:  # it still imports torch
            self._process.kill()
            self._process.wait()
        finally:
            self._folder.close()


class RunServers:
    """The servers of this process: one a side of a comparison, each started when it is needed."""

    def __init__(self) -> None:
        self._servers: dict[Seat, RunServer] = {}

    def start(
        self, seat: Seat, side: Installation, function: str, arguments: Sequence[str], cwd: Path
    ) -> Running | None:
        """Start a run as a fork; return None if it needs a new interpreter.

        Args:
            seat: side of the comparison that it is.
            side: interpreter and files.
            function: as `Installation.words` takes it.
            arguments: of the function.
            cwd: working directory.
        """
        if not (side.is_of_this_interpreter and _can_be_served()):
            return None
        surroundings = _surroundings(cwd)
        server = self._servers.get(seat)
        if server is None or not server.idle or server.surroundings != surroundings:
            self._close(seat)
            server = self._servers[seat] = RunServer(surroundings, cwd)
        number = server.run(function, arguments, cwd, side)
        if number != NOT_FORKED:
            return ForkedRun(server, number)
        if not server.alive:
            self._close(seat)
        return None

    def call(self, function: Callable[[], Any], answer: Path) -> Any:
        """Call a function of this package in a fork of a server if torch is not imported here.

        Args:
            function: of plain arguments and result.
            answer: a new file.

        Raises:
            Exception: what it raises.
        """
        server = next(
            (server for server in self._servers.values() if server.idle and server.alive), None
        )
        if server is None or "torch" in sys.modules:  # which takes most of the time
            return function()
        number = server.ask(CallRequest(pickle.dumps(function), answer), [0, 1, 2])
        if number == NOT_FORKED or ForkedRun(server, number).wait() != 0:
            return function()
        well, result = pickle.loads(answer.read_bytes())
        if not well:
            raise result
        return result

    def package_of(self, seat: Seat) -> Path:
        """Return the folder from which the forks of a server import this package."""
        return self._servers[seat].package

    def close(self) -> None:
        """End all servers."""
        for seat in [*self._servers]:
            self._close(seat)

    def _close(self, seat: Seat) -> None:
        server = self._servers.pop(seat, None)
        if server is not None:
            server.close()


_open: list[RunServers] = []


@contextmanager
def run_servers() -> Iterator[RunServers]:
    """Yield the servers of this process: those of an enclosing block, or new ones for this one."""
    if _open:
        yield _open[-1]
        return
    _open.append(RunServers())
    try:
        yield _open[-1]
    finally:
        _open.pop().close()


def _can_be_served() -> bool:
    """Return whether forks of a server are what new interpreters of this process would be."""
    if sys.platform != "linux" or OF_A_LAUNCH in os.environ:
        return False
    if threading.current_thread() is not threading.main_thread():
        return False  # a server ends with the thread that has started it
    try:
        return all(os.fstat(number) for number in (0, 2))
    except OSError:  # closed, and Python would have no such stream
        return False


def _surroundings(cwd: Path) -> object:
    """Return this process's environment and settings that a new process inherits at its start."""
    variables = {name: value for name, value in os.environ.items() if name not in OF_ONE_TEST}
    path = variables.get("PYTHONPATH", "").split(os.pathsep)
    relative = "PYTHONPATH" in variables and not all(map(os.path.isabs, path))
    ignored = [
        signal_number
        for signal_number in signal.valid_signals()
        if signal.getsignal(signal_number) is signal.SIG_IGN
    ]
    limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    return (
        variables,
        str(cwd) if relative else None,  # from which Python makes such entries absolute
        [os.isatty(number) for number in (0, 2)],
        sorted(ignored),
        sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        {name: resource.getrlimit(getattr(resource, name)) for name in limits},
        [line for line in status.splitlines() if line.startswith("Umask:")],
        os.sched_getaffinity(0),
        os.getpriority(os.PRIO_PROCESS, 0),
    )
