"""Wait for what ranks have to say, within a deadline; drain them all before anybody judges."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait

from pytest_precision.ranks.handle import Rank
from pytest_precision.ranks.process.messages import FromRank, Raised
from pytest_precision.ranks.process.output import readable

GRACE_SECONDS = 1.0
"""For the other ranks, once one has failed: what frees them from a collective is its end."""
STACKS_SECONDS = 1.0
"""For the processes that do not answer to write down where they are."""


@dataclass(frozen=True, slots=True)
class Died:
    """The process is gone without a word.

    Attributes:
        status: exit status, negative for a signal; None where it only let go of its connection.
    """

    status: int | None


@dataclass(frozen=True, slots=True)
class Received:
    """What was received from a rank, and when (monotonic clock, here)."""

    what: FromRank | Died
    at: float


def collect(ranks: Sequence[Rank], deadline: float) -> dict[int, Received]:
    """What each rank says by `deadline`, or within the grace after a failure, if it says anything.

    Args:
        ranks: that were asked something.
        deadline: on the monotonic clock.
    """
    received: dict[int, Received] = {}
    failed = False
    while silent := [rank for rank in ranks if rank.number not in received]:
        waitables = [waitable for rank in silent for waitable in rank.waitables]
        ready = wait(waitables, max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        now = time.monotonic()
        for rank in silent:
            if any(waitable in ready for waitable in rank.waitables):
                said = rank.recv()
                what = Died(said) if said is None or isinstance(said, int) else said
                received[rank.number] = Received(what, now)
                if isinstance(what, Died | Raised) and not failed:
                    failed = True
                    deadline = min(deadline, now + GRACE_SECONDS)
    return received


def stacks(ranks: Sequence[Rank]) -> Mapping[int, str]:
    """Where these ranks are: the Python stacks of their threads; empty for a stopped process."""
    for rank in ranks:
        rank.signal(signal.SIGUSR1)
    deadline = time.monotonic() + STACKS_SECONDS
    written = dict.fromkeys((rank.number for rank in ranks), "")
    while time.monotonic() < deadline:
        time.sleep(0.05)
        before, written = written, {rank.number: _read(rank) for rank in ranks}
        if all(written.values()) and written == before:
            break
    return written


def _read(rank: Rank) -> str:
    try:
        return readable(rank.membership.stacks.read_text(errors="replace"))
    except OSError:
        return ""
