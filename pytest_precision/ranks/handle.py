"""Rank: the handle of one rank's process, on this machine or on another one."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from typing import TypeAlias

from pytest_precision.ranks.launch.remote import RemoteRank
from pytest_precision.ranks.process.process import KILL_SECONDS, RankProcess

TERM_SECONDS = 0.5
"""Time between SIGTERM, which a job may handle, and SIGKILL."""

Rank: TypeAlias = RankProcess | RemoteRank
"""What a group has of each of its ranks. Both kinds have the same methods and attributes."""


def leave(ranks: Iterable[Rank], seconds: float) -> None:
    """Wait up to `seconds`, in total, for ranks to exit that were told to stop."""
    deadline = time.monotonic() + seconds
    for rank in ranks:
        rank.join(deadline)


def end(ranks: Iterable[Rank]) -> None:
    """End ranks within bounded time: SIGTERM first, then SIGKILL."""
    ranks = list(ranks)
    for rank in ranks:
        rank.signal(signal.SIGTERM)
    leave(ranks, TERM_SECONDS)
    for rank in ranks:
        rank.kill_all()
    leave(ranks, KILL_SECONDS)
