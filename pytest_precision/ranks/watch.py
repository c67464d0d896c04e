"""Collect the answers of all ranks within a deadline."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait

from pytest_precision import _progress
from pytest_precision.ranks.handle import Rank
from pytest_precision.ranks.process.messages import Ended, FromRank, Raised
from pytest_precision.ranks.process.output import readable_stacks

PEER_ANSWER_SECONDS = 1.0
"""Time for the other ranks to answer after a failure. Its end frees them from collectives of gloo;
in those of NCCL they spin until they are ended."""
STACKS_SECONDS = 1.0
"""Time for processes that did not answer to write their stacks."""

_ENDINGS = (None, -signal.SIGTERM, -signal.SIGKILL)
"""Statuses of a rank that may have been ended from here."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message from a rank, and its time on the monotonic clock.

    A death came when it was seen: a host may wait for the status before it passes it on.
    """

    message: FromRank | Ended
    at: float


def collect(ranks: Sequence[Rank], deadline: float) -> dict[int, Received]:
    """Return the message of each rank that answers until `deadline`, or soon after a failure.

    Ranks that sent nothing are missing from the result.

    Args:
        ranks: ranks that have been sent a job, or are about to start.
        deadline: moment on the monotonic clock.
    """
    received_answers: dict[int, Received] = {}
    failed = False
    while silent_ranks := [rank for rank in ranks if rank.number not in received_answers]:
        waitables = [waitable for rank in silent_ranks for waitable in rank.waitables]
        left = max(0.0, deadline - time.monotonic())
        ready = wait(waitables, min(left, _progress.LINE_SECONDS))
        if not ready and left > _progress.LINE_SECONDS:
            numbers = ", ".join(str(rank.number) for rank in silent_ranks)
            _progress.wait(f"waiting for rank{'s' * (len(silent_ranks) > 1)} {numbers}")
            continue
        if not ready:
            break
        moment = time.monotonic()
        for rank in silent_ranks:
            if any(waitable in ready for waitable in rank.waitables):
                message = rank.recv()
                at = message.when if isinstance(message, Ended) else moment
                received_answers[rank.number] = Received(message, at)
                if isinstance(message, Ended | Raised) and not failed:
                    failed = True
                    deadline = min(deadline, moment + PEER_ANSWER_SECONDS)
    return received_answers


def has_failure(received_answers: Mapping[int, Received]) -> bool:
    """Return whether a rank has failed."""
    return any(isinstance(answer.message, Ended | Raised) for answer in received_answers.values())


def with_statuses(
    received_answers: Mapping[int, Received], ranks: Sequence[Rank]
) -> dict[int, Received]:
    """Return the ranks' messages, with exit statuses that were not known when they came.

    A GPU's memory is freed in that time.

    Args:
        received_answers: what each rank has sent.
        ranks: all ranks, which have been ended since.
    """
    answers = dict(received_answers)
    for rank in ranks:
        at = received_answers[rank.number].at if rank.number in received_answers else 0.0
        if received_answers.get(rank.number) == Received(Ended(None, at), at) and not rank.alive:
            message = rank.recv()
            if isinstance(message, Ended) and message.status not in _ENDINGS:
                answers[rank.number] = Received(replace(message, when=at), at)
    return answers


def stacks(ranks: Sequence[Rank]) -> Mapping[int, str]:
    """Return the Python stacks of each rank's threads; empty where a rank writes none in time."""
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
        return readable_stacks(rank.membership.stacks.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""
