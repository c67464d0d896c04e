"""A job that does not end: it is ended, in bounded time, and the text says where it was."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import psutil
import pytest

from pytest_precision.ranks import RankError, Ranks
from pytest_precision.ranks.process import TERM_SECONDS
from pytest_precision.ranks.watch import GRACE_SECONDS, STACKS_SECONDS

DEADLINE = 1.0
SLACK = 2.0
"""For a machine that does something else."""
BOUND = DEADLINE + GRACE_SECONDS + STACKS_SECONDS + TERM_SECONDS + SLACK


def loop(folder=None):
    """Rank 1 never comes to the collective in which rank 0 waits for it."""
    import torch
    import torch.distributed as dist

    while dist.get_rank() == 1:
        pass
    dist.all_reduce(torch.ones(1))


def join_alone():
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))


def stop():
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(1))


def deaf_loop():
    """A job that has taken SIGTERM for itself."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        pass


def interrupt_the_caller(pid):
    if os.environ["RANK"] == "0":
        time.sleep(0.2)
        os.kill(pid, signal.SIGINT)
    time.sleep(600)


def process():
    return os.getpid()


def hang(ranks: Ranks, function, **settings) -> RankError:
    """The error of a job that does not end; the next job runs."""
    pids = ranks.run(2, process)
    started = time.monotonic()
    with pytest.raises(RankError) as caught:
        ranks.run(2, function, **settings)
    assert time.monotonic() - started < BOUND
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert set(ranks.run(2, process)).isdisjoint(pids)
    assert caught.value.cause == "hung"
    return caught.value


@pytest.fixture
def hasty() -> Iterator[Ranks]:
    """Ranks whose collectives give up by themselves before the deadline."""
    ranks = Ranks(timeout=DEADLINE)
    yield ranks
    ranks.close()


def test_a_loop_is_ended(pool):
    """The stacks of all ranks are in the text: who loops, and who waits for it."""
    text = str(hang(pool, loop, timeout=DEADLINE))
    assert "hung: no answer within 1 s" in text.splitlines()[0]
    one, other = text.split("Stacks of rank 1:")
    assert "in all_reduce" in one
    assert "in loop" in one
    assert "in all_reduce" not in other
    assert "in loop" in other
    assert text.count("most recent call first") == 2, "threads of the package are left out"


def test_a_loop_is_named_by_a_collective_that_gave_up(hasty):
    """Rank 0 gives up and raises; rank 1 is the one that hung."""
    error = hang(hasty, loop)
    assert error.rank == 1
    assert "in all_reduce" in str(error)


def test_a_collective_without_its_peer_is_ended(pool):
    """Rank 0 waits for a rank that is done."""
    error = hang(pool, join_alone, timeout=DEADLINE)
    assert error.rank == 0
    assert "rank 1: done" in str(error)


def test_a_collective_that_gave_up_is_no_exception_of_its_own(hasty):
    """It raises on rank 0, but the cause is time."""
    error = hang(hasty, join_alone)
    assert error.rank == 0
    assert "in join_alone" in str(error)


def test_a_stopped_rank_is_ended(pool):
    """It cannot say where it is, which tells it from its peer."""
    error = hang(pool, stop, timeout=DEADLINE)
    assert error.rank == 1
    assert "none: the process did not react" in str(error)


def test_a_rank_that_ignores_sigterm_is_ended(pool):
    """SIGKILL is next."""
    hang(pool, deaf_loop, timeout=DEADLINE)


def test_ctrl_c_ends_the_ranks(pool):
    """The caller's interrupt passes through, the group is gone, the next job runs."""
    pids = pool.run(2, process)
    with pytest.raises(KeyboardInterrupt):
        pool.run(2, interrupt_the_caller, os.getpid())
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert len(pool.run(2, process)) == 2
