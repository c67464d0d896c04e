"""Rank: what a group asks of the handle of one of its ranks, wherever the process is."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Protocol

from pytest_precision.ranks.process.messages import FromRank, ToRank
from pytest_precision.ranks.process.worker import Membership


class Rank(Protocol):
    """One rank's process, and the way to it.

    Attributes:
        number: its rank.
        membership: what it was started with.
    """

    number: int
    membership: Membership

    @property
    def waitables(self) -> Sequence[Connection | int]:
        """What is ready in `multiprocessing.connection.wait` when there is something to hear."""

    @property
    def alive(self) -> bool:
        """Whether the process is there."""

    def send(self, message: ToRank) -> None:
        """Says something to it; what happened to a rank that is gone is told by `recv`."""

    def recv(self) -> FromRank | int | None:
        """What a rank with a waitable that is ready says.

        Returns:
            its message; or, where it is gone without one, its exit status, as
            `multiprocessing.Process.exitcode` has it; None where it only let go of the connection.
        """

    def signal(self, number: int) -> None:
        """Sends a signal to the process, if it is there."""

    def kill_all(self) -> None:
        """Kills the process and all that it started."""

    def join(self, deadline: float) -> None:
        """Waits for the end of the process, at most until `deadline` on the monotonic clock."""

    def close(self) -> None:
        """Lets go of the connection."""
