"""The handle of a rank that another process, its host, has started.

All messages pass through the host in order, so the last message of a rank comes before its end.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

from pytest_precision.ranks.process.messages import Ended, FromRank, Raised, Skipped, ToRank
from pytest_precision.ranks.process.worker import Membership
from pytest_precision.ranks.state.environment import Environment


@dataclass(frozen=True, slots=True)
class Start:
    """A message that asks a host process to start a rank; the connection then serves that rank.

    Attributes:
        membership: membership of the rank; only the declared part of its environment is used.
        changes: changes to the host's own environment; None removes a variable.
    """

    membership: Membership
    changes: dict[str, str | None]

    @classmethod
    def of(cls, membership: Membership, before: Mapping[str, str]) -> Start:
        """Return a rank's message, with declared variables and the caller's changes since `before`.

        Args:
            membership: of the rank.
            before: environment variables with which the host was started.
        """
        environment = membership.environment
        declared_environment = Environment(frozenset(), environment.declared)
        changes = environment.changes_since(before)
        return cls(replace(membership, environment=declared_environment), changes)


@dataclass(frozen=True, slots=True)
class Signal:
    """A message that asks a host process to send a signal to its rank.

    Attributes:
        number: number of the signal; None kills the rank and all processes that it started.
    """

    number: int | None


class RemoteRank:
    """The handle of a rank that another process, its host, starts and relays messages for.

    Args:
        line: connection to the host, for this rank only.
        start: message that makes the host start the rank.
        ahead: seconds by which the host's monotonic clock is ahead of this process's.
    """

    def __init__(self, line: Connection, start: Start, ahead: float) -> None:
        self.number = start.membership.rank
        self.membership = start.membership
        self._line = line
        self._ahead = ahead
        self._over: Ended | None = None
        self._say(start)

    @property
    def waitables(self) -> tuple[Connection]:
        """The connection to the host, readable once the rank has sent something."""
        return (self._line,)

    @property
    def alive(self) -> bool:
        """Whether an idle rank's process is alive: it would have sent a message when it ended."""
        return not self._over and not self._line.poll()

    def send(self, message: ToRank) -> None:
        """Send a message to the rank through its host; a lost connection is reported by `recv`."""
        self._say(message)

    def recv(self) -> FromRank | Ended:
        """Return the rank's next message, or an `Ended` once the rank or its host has ended.

        If the rank's host has ended, the rank has ended without a status.
        """
        if self._over:
            return self._over
        try:
            said: FromRank | Ended = self._line.recv()
        except (EOFError, OSError):
            self._over = Ended(None, time.monotonic())
            return self._over
        if isinstance(said, Raised | Skipped | Ended):
            said = replace(said, when=said.when - self._ahead)
        if isinstance(said, Ended) and said.status is not None:
            self._over = said
        return said

    def signal(self, number: int) -> None:
        """Send a Unix signal to the rank's process, through the process that started it."""
        self._say(Signal(number))

    def kill_all(self) -> None:
        """Make the host kill the rank's process and all processes that it started."""
        self._say(Signal(None))

    def join(self, deadline: float) -> None:
        """Drop the rank's messages until it ends, or until `deadline` on the monotonic clock."""
        while not self._over and self._line.poll(max(0.0, deadline - time.monotonic())):
            self.recv()

    def close(self) -> None:
        """Close the connection to the host process, which then kills the rank if it is alive."""
        self._line.close()

    def _say(self, message: Start | Signal | ToRank) -> None:
        with contextlib.suppress(OSError):  # `recv` tells what happened to the host
            self._line.send(message)
