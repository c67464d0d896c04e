"""Rank: the interface to one rank's process, on this machine or on another one."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Protocol

from pytest_precision.ranks.process.messages import Ended, FromRank, ToRank
from pytest_precision.ranks.process.worker import Membership


class Rank(Protocol):
    """The interface to one rank's process, and to the connection with it.

    Attributes:
        number: number of the rank in its group.
        membership: place in its group, with which it was started.
    """

    number: int
    membership: Membership

    @property
    def waitables(self) -> Sequence[Connection | int]:
        """Objects for `multiprocessing.connection.wait`; one becomes ready when the rank has sent a
        message or has ended.
        """

    @property
    def alive(self) -> bool:
        """Whether the rank's process is alive."""

    def send(self, message: ToRank) -> None:
        """Send a message to the rank; if its process has ended, `recv` reports that."""

    def recv(self) -> FromRank | Ended:
        """Return the next message of the rank, or an `Ended` if its process ended without one."""

    def signal(self, number: int) -> None:
        """Send a signal to the rank's process, if it is alive."""

    def kill_all(self) -> None:
        """Kill the rank's process and all processes that it started."""

    def join(self, deadline: float) -> None:
        """Wait until the rank's process ends, or until `deadline` on the monotonic clock."""

    def close(self) -> None:
        """Close the connection to the rank's process."""
