"""RankProcess: the handle of a rank that is a child of this process or of its fork server."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

from pytest_precision.ranks.process import reaper, server, worker
from pytest_precision.ranks.process.messages import Ended, FromRank, ToRank
from pytest_precision.ranks.state.environment import patched

EXIT_SECONDS = 1.0
"""Time between the end of a process's connection and its exit status."""
POLL_SECONDS = 0.01
"""Pause between two looks for an exit status."""
KILL_SECONDS = 5.0
"""Time until a killed process is gone; only a process blocked in the kernel takes longer."""

_interpreter = multiprocessing.get_context("spawn")


class RankProcess:
    """One rank's process, and the connection to it; the constructor starts the process.

    Attributes:
        number: number of the rank in its group.
        membership: place in its group, with which it was started.
        connection: connection to it; ready when it has sent a message or is gone.
        sentinel: ready when the process is gone.

    Raises:
        RankError: the fork server did not answer in time.
    """

    def __init__(self, membership: worker.Membership) -> None:
        self.number = membership.rank
        self.membership = membership
        anew = membership.needs_interpreter
        start: Any = _interpreter if anew else server.context
        self.connection, theirs = start.Pipe()
        self._process: BaseProcess = start.Process(
            target=worker.run_rank, args=(membership, theirs), name=f"rank{membership.rank}"
        )
        try:
            with server.starting:
                if not anew:
                    server.ensure_running(membership.preload)
                with (
                    server.answering(membership.start_seconds),
                    patched(membership.variables if anew else {}),
                    _no_main(),
                ):
                    _start(self._process)
                process: Any = self._process
                process._popen.poll = _one_at_a_time(process._popen.poll)
        except BaseException as error:
            self.connection.close()
            if isinstance(error, TimeoutError):
                raise membership.not_started("hung", error) from error
            raise
        finally:
            theirs.close()
        self.sentinel = self._process.sentinel
        self._buried = False

    @property
    def waitables(self) -> tuple[Connection, int]:
        """The rank's connection and sentinel; one is ready once it has sent or ended."""
        return self.connection, self.sentinel

    @property
    def alive(self) -> bool:
        """Whether the rank's process is alive."""
        return self._process.is_alive()

    def send(self, message: ToRank) -> None:
        """Send a message to the rank; if its process has ended, `recv` reports that."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(message)

    def recv(self) -> FromRank | Ended:
        """Return the rank's next message, or an `Ended` with its exit status if it sent none."""
        seen_at = time.monotonic()
        with contextlib.suppress(EOFError, ConnectionResetError):
            if self.connection.poll():
                message: FromRank = self.connection.recv()
                return message
        self._process.join(EXIT_SECONDS)
        return Ended(self._process.exitcode, seen_at)

    def signal(self, number: int) -> None:
        """Send a signal to the rank's process, if it is alive."""
        if self.alive and self._process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def kill_all(self) -> None:
        """Kill the rank's process and all processes that it started.

        A process that has ended is dealt with once: its number may soon belong to another one.
        """
        assert self._process.pid is not None
        if self._buried:
            return
        if self.alive:
            reaper.end_descendants(self._process.pid)
        else:  # its children have a new parent
            self._buried = True
            server.end_adopted()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.signal(signal.SIGKILL)  # it may be so young that it has no session of its own

    def join(self, deadline: float) -> None:
        """Wait until the rank's process ends, or until `deadline` on the monotonic clock."""
        self._process.join(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Close the connection, and free what multiprocessing keeps for the process."""
        self.connection.close()
        if self.alive:  # it was killed, but a stopped server does not report that
            server.kill()
        # A stored exception may keep this object alive through its traceback.
        with contextlib.suppress(ValueError):  # the process is still blocked in the kernel
            self._process.close()


def _start(process: BaseProcess) -> None:
    """Start a process from a long-lived thread; Linux would kill it when a caller's thread ends."""
    if threading.current_thread() is threading.main_thread():
        process.start()
    else:
        _lasting_thread(os.getpid()).submit(process.start).result()


@functools.cache
def _lasting_thread(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1)


def _one_at_a_time(poll: Callable[..., int | None]) -> Callable[..., int | None]:
    """Wrap multiprocessing's poll of an exit status: one thread at a time, each for a bounded time.

    A host has a thread for each rank, and multiprocessing asks for all of them at each start. It
    waits for a status without limit once the sentinel is ready, as it is when a rank that lives
    has closed all its descriptors: here it waits for `EXIT_SECONDS`, and never with the lock.
    """
    polling = threading.Lock()

    def polled(flag: int = os.WNOHANG) -> int | None:
        until = time.monotonic() + (0.0 if flag == os.WNOHANG else EXIT_SECONDS)
        while True:
            with polling:
                status = poll(os.WNOHANG)
            if status is not None or time.monotonic() >= until:
                return status
            time.sleep(POLL_SECONDS)

    return polled


@contextlib.contextmanager
def _no_main() -> Iterator[None]:
    # A child of multiprocessing imports its parent's __main__, which is pytest or a script that
    # would run again. Ranks must import only what a job names.
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
