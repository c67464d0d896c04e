"""RankProcess: the handle of a rank that is a child of this process."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

from pytest_precision.errors import RankError
from pytest_precision.ranks.handle import Rank
from pytest_precision.ranks.process import server, undertaker, worker
from pytest_precision.ranks.process.messages import FromRank, ToRank
from pytest_precision.ranks.state.environment import patched

EXIT_SECONDS = 1.0
"""Between the moment that a process lets go of its connection and its exit status."""
TERM_SECONDS = 0.5
"""Between SIGTERM, which a job may want to hear, and SIGKILL."""
KILL_SECONDS = 5.0
"""Until a killed process is gone; only one that the kernel holds takes longer."""

_interpreter = multiprocessing.get_context("spawn")


class RankProcess:
    """One rank's process, and the connection to it; starting it is opening it.

    Attributes:
        number: its rank.
        membership: what it was started with.
        connection: to it; ready when it said something or is gone.
        sentinel: ready when the process is gone.
    """

    def __init__(self, membership: worker.Membership) -> None:
        self.number = membership.rank
        self.membership = membership
        # The server has loaded torch, and with it has read the variables that torch reads then.
        declared = bool(membership.environment.declared)
        start: Any = _interpreter if declared else server.context
        if not declared:
            server.ensure_running()
        self.connection, theirs = start.Pipe()
        self._process: BaseProcess = start.Process(
            target=worker.main, args=(membership, theirs), name=f"rank{membership.rank}"
        )
        try:
            with (
                server.answering(membership.start_seconds),
                patched(membership.variables if declared else {}),
                _no_main(),
            ):
                self._process.start()
        except BaseException as error:
            self.connection.close()
            if isinstance(error, TimeoutError):
                raise self._not_started(error) from error
            raise
        finally:
            theirs.close()
        self.sentinel = self._process.sentinel

    def _not_started(self, error: TimeoutError) -> RankError:
        size = self.membership.world_size
        text = f"rank {self.number} of {size} in the start of the group hung: {error}"
        return RankError(text, self.number, "hung")

    @property
    def waitables(self) -> tuple[Connection, int]:
        """See `Rank`."""
        return self.connection, self.sentinel

    @property
    def alive(self) -> bool:
        """Whether the process is there."""
        return self._process.is_alive()

    def send(self, message: ToRank) -> None:
        """Says something to it; what happened to a rank that is gone is told by `recv`."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(message)

    def recv(self) -> FromRank | int | None:
        """What a rank that is ready in `wait` says.

        Returns:
            its message; or, where it is gone without one, its exit status, as
            `multiprocessing.Process.exitcode` has it; None where it only let go of the connection.
        """
        with contextlib.suppress(EOFError, ConnectionResetError):
            if self.connection.poll():
                message: FromRank = self.connection.recv()
                return message
        self._process.join(EXIT_SECONDS)
        return self._process.exitcode

    def signal(self, number: int) -> None:
        """Sends a signal to the process, if it is there."""
        if self.alive and self._process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def kill_all(self) -> None:
        """Kills the process and all that it started."""
        assert self._process.pid is not None
        if self.alive:
            undertaker.end_descendants(self._process.pid)
        else:  # its children have another parent
            server.end_adopted()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.signal(signal.SIGKILL)  # a process so young that it has no session of its own

    def join(self, deadline: float) -> None:
        """Waits for the end of the process, at most until `deadline` on the monotonic clock."""
        self._process.join(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Lets go of the connection, and of what multiprocessing holds for a process."""
        self.connection.close()
        if self.alive:  # one that was killed: nobody says so but a server that is not stopped
            server.kill()
        # An error that somebody keeps has this object in its traceback.
        with contextlib.suppress(ValueError):  # the kernel still holds the process
            self._process.close()


def leave(ranks: Iterable[Rank], seconds: float) -> None:
    """Waits for ranks that were told to leave."""
    deadline = time.monotonic() + seconds
    for rank in ranks:
        rank.join(deadline)


def end(ranks: Iterable[Rank]) -> None:
    """Ends processes that may not go on, in bounded time: SIGTERM, then SIGKILL."""
    ranks = list(ranks)
    for rank in ranks:
        rank.signal(signal.SIGTERM)
    leave(ranks, TERM_SECONDS)
    for rank in ranks:
        rank.kill_all()
    leave(ranks, KILL_SECONDS)


@contextlib.contextmanager
def _no_main() -> Iterator[None]:
    # A child of multiprocessing imports its parent's __main__: pytest, or a script that would run
    # once more. Ranks import what a job names, and nothing else.
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
