"""A group that cannot start, since a rank does not come or cannot join."""

from __future__ import annotations

import signal

import pytest
from around import process
from slack import slack

from pytest_precision import RankError
from pytest_precision.ranks import RankPool
from pytest_precision.ranks.process.process import RankProcess

START_SECONDS = 3.0


class Starter:
    """Starts ranks, and sends a signal to rank 1 of the second group before it has joined."""

    def __init__(self, number):
        self.number = number
        self.started = 0

    def __call__(self, membership):
        rank = RankProcess(membership)
        self.started += membership.rank == 1
        if membership.rank == 1 and self.started == 2:
            rank.signal(self.number)
        return rank


@pytest.mark.parametrize(
    ("number", "cause", "words"),
    [
        (signal.SIGKILL, "died", "died: killed by SIGKILL"),
        (signal.SIGSTOP, "hung", "hung: no answer within 3 s"),
    ],
)
def test_a_rank_that_does_not_come_is_named(suffer, monkeypatch, number, cause, words):
    """In the time that a start has, whatever its peers are waiting for."""
    monkeypatch.setattr("pytest_precision.ranks.local.START_SECONDS", START_SECONDS)
    monkeypatch.setattr("pytest_precision.plugin.resources.RankProcess", Starter(number))
    suffered = suffer(process, mode="fresh", timeout=START_SECONDS)
    assert (suffered.error.rank, suffered.error.cause) == (1, cause)
    assert suffered.headline == f"rank 1 of 2 in the start of the group {words}"
    assert suffered.seconds < START_SECONDS + slack()


class AskedError(Exception):
    """Raised in place of a start."""


@pytest.mark.parametrize(("job", "start"), [(5, 120), (600, 600)])
def test_a_start_has_the_time_of_a_job_and_no_less_than_its_own(job, start):
    """A slow machine needs one option; a job that must be short shortens no import of torch."""

    def ask(membership):
        raise AskedError(membership.start_seconds)

    with pytest.raises(AskedError) as asked:
        RankPool(timeout=job, start=ask).run(1, process)
    assert asked.value.args == (start,)


def test_a_rank_that_cannot_join_is_named(nothing_left, monkeypatch):
    """With its own error, and that it was the start."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "missing0")
    ranks = RankPool("fresh", timeout=30)
    with pytest.raises(RankError, match="in the start of the group raised") as caught:
        ranks.run(2, process)
    assert caught.value.cause == "raised"
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    assert len(ranks.run(2, process)) == 2
