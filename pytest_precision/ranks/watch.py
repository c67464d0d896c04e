"""Watch: wait for the answers of all ranks within a deadline, before any of them is judged."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait

from pytest_precision.ranks.handle import Rank
from pytest_precision.ranks.process.messages import Ended, FromRank, Raised
from pytest_precision.ranks.process.output import readable_stacks

GRACE_SECONDS = 1.0
"""Time for the other ranks to answer after a failure. Its end frees them from collectives of gloo;
in those of NCCL they spin until they are ended."""
STACKS_SECONDS = 1.0
"""Time for processes that did not answer to write their stacks."""


@dataclass(frozen=True, slots=True)
class Received:
    """What was received from a rank, and when, on the monotonic clock of this process.

    A death came when it was seen: a host may wait for the status before it passes it on.
    """

    what: FromRank | Ended
    at: float


def collect(ranks: Sequence[Rank], deadline: float) -> dict[int, Received]:
    """Return what each rank sent by `deadline`, or within the grace time after a failure.

    Ranks that sent nothing are missing from the result.

    Args:
        ranks: ranks that have been sent a job, or are about to start.
        deadline: moment on the monotonic clock.
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
                what = rank.recv()
                at = what.when if isinstance(what, Ended) else now
                received[rank.number] = Received(what, at)
                if isinstance(what, Ended | Raised) and not failed:
                    failed = True
                    deadline = min(deadline, now + GRACE_SECONDS)
    return received


def has_failure(received: Mapping[int, Received]) -> bool:
    """Return whether a rank has failed."""
    return any(isinstance(answer.what, Ended | Raised) for answer in received.values())


def stacks(ranks: Sequence[Rank]) -> Mapping[int, str]:
    """Return the Python stacks of all threads of these ranks; empty for a stopped process."""
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
        return readable_stacks(rank.membership.stacks.read_text(errors="replace"))
    except OSError:
        return ""
