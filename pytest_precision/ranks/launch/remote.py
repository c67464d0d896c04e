"""RemoteRank: the handle of a rank that is a child of another process of the launch, its host.

What is said passes through the host, in order: so the last words of a rank come before its end.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

from pytest_precision.ranks.process.messages import FromRank, Raised, Skipped, ToRank
from pytest_precision.ranks.process.worker import Membership


@dataclass(frozen=True, slots=True)
class Start:
    """To a host: start this rank; the connection is its line from now on.

    Attributes:
        membership: of the rank; of its environment, only what is declared counts.
        changes: to the host's own environment; None removes a variable.
    """

    membership: Membership
    changes: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Signal:
    """To a host, on a rank's line: send this signal to the rank.

    Attributes:
        number: of the signal; None kills the rank and all that it started.
    """

    number: int | None


@dataclass(frozen=True, slots=True)
class Ended:
    """From a host, on a rank's line: the rank let go of its connection.

    Attributes:
        status: its exit status; None while the process is still there.
    """

    status: int | None


class RemoteRank:
    """See `handle.Rank`.

    Args:
        line: to the host, for this rank alone.
        start: what the host is asked for.
        ahead: seconds that the host's monotonic clock is ahead of the one here.
    """

    def __init__(self, line: Connection, start: Start, ahead: float) -> None:
        self.number = start.membership.rank
        self.membership = start.membership
        self._line = line
        self._ahead = ahead
        self._status: int | None = None
        self._over = False
        self._say(start)

    @property
    def waitables(self) -> tuple[Connection]:
        """See `Rank`."""
        return (self._line,)

    @property
    def alive(self) -> bool:
        """Whether the process is there; one that was asked nothing has nothing to say but that."""
        return not self._over and not self._line.poll()

    def send(self, message: ToRank) -> None:
        """See `Rank`."""
        self._say(message)

    def recv(self) -> FromRank | int | None:
        """See `Rank`; None also where the host itself is gone."""
        if self._over:
            return self._status
        try:
            said: FromRank | Ended = self._line.recv()
        except (EOFError, OSError):
            self._over = True
            return None
        if isinstance(said, Ended):
            self._status = said.status
            self._over = said.status is not None
            return said.status
        if isinstance(said, Raised | Skipped):
            return replace(said, when=said.when - self._ahead)
        return said

    def signal(self, number: int) -> None:
        """See `Rank`."""
        self._say(Signal(number))

    def kill_all(self) -> None:
        """See `Rank`."""
        self._say(Signal(None))

    def join(self, deadline: float) -> None:
        """See `Rank`; what the process still says is dropped."""
        while not self._over and self._line.poll(max(0.0, deadline - time.monotonic())):
            self.recv()

    def close(self) -> None:
        """See `Rank`; the host kills what is still there."""
        self._line.close()

    def _say(self, message: Start | Signal | ToRank) -> None:
        with contextlib.suppress(OSError):  # what happened to the host is told by `recv`
            self._line.send(message)
