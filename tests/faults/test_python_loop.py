"""A rank in an infinite loop of Python."""

from __future__ import annotations

import os
import signal
import time

import pytest
from slack import slack

from pytest_precision import RankError
from pytest_precision.ranks import RankPool

DEADLINE = 5.0
"""Seconds; ranks have a tenth of them to say that a collective gave up, also on a busy machine."""

SHORT = 2.0
"""Seconds of a call on ranks whose collectives wait longer, so that none of them says anything."""


def loop():
    """Rank 1 never comes to the collective in which rank 0 waits for it."""
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    while rank == 1:
        time.sleep(0.01)
    dist.all_reduce(torch.ones(1))


def loop_beside_a_failure():
    """Take a core, as the other loops do not, whose ends take as long as their deadline."""
    while os.environ["RANK"] == "0":
        pass
    raise KeyError("planted")


def loop_deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(0.01)


FAULTS = [(loop, ()), (loop_deaf, ())]


def test_a_loop_is_named(suffer):
    """And where it is; rank 0 gives up in its collective at about the same time."""
    suffered = suffer(loop, timeout=DEADLINE)
    assert (suffered.error.rank, suffered.error.cause) == (1, "hung")
    assert suffered.headline == "rank 1 of 2 in test_python_loop:loop hung: no answer within 5 s"
    assert "in loop" in suffered.text
    assert "in all_reduce" in suffered.text
    assert suffered.seconds < DEADLINE + slack()


def test_a_loop_is_told_from_those_who_wait_for_it(nothing_left):
    """None of them answers; the one that is in no collective holds up the others."""
    ranks = RankPool(timeout=30)
    with pytest.raises(RankError) as caught:
        ranks.run(2, loop, timeout=SHORT)
    assert (caught.value.rank, caught.value.cause) == (1, "hung")
    one, other = str(caught.value).split("Stacks of rank 0:")
    assert "in loop" in one
    assert "in all_reduce" not in one
    assert "in all_reduce" in other
    ranks.close()


def test_a_rank_that_does_not_notice_a_failure_is_ended(suffer):
    """It has a grace, not the whole deadline."""
    suffered = suffer(loop_beside_a_failure)
    assert (suffered.error.rank, suffered.error.cause) == (1, "raised")
    assert "rank 0: no answer, ended" in suffered.text
    assert suffered.seconds < slack()


def test_a_rank_that_ignores_sigterm_is_ended(suffer):
    """SIGKILL is next."""
    suffered = suffer(loop_deaf, timeout=DEADLINE)
    assert suffered.error.cause == "hung"
    assert suffered.seconds < DEADLINE + slack()
