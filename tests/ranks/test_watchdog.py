"""A hang whose ranks are ended by a watchdog, as NCCL's does, is told as a hang, with stacks."""

from __future__ import annotations

import os
import time

import pytest

from pytest_precision import RankError
from pytest_precision.ranks import RankPool, local

SECONDS = 8.0
COLLECTIVE_SHARE = 0.5
AFTER_COLLECTIVES = 0.55
"""Share of the deadline at which the stand-in for a watchdog aborts."""


@pytest.fixture(autouse=True)
def aborting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU be a device whose collectives end the process when they time out.

    They time out early, since on a busy machine a rank begins its sleep long after the job is sent.
    """
    monkeypatch.setattr(local, "ABORTING", {"cpu"})
    monkeypatch.setattr(local, "COLLECTIVE_SHARE", COLLECTIVE_SHARE)


def stuck_in_a_loop() -> None:
    time.sleep(60)


def aborted_by_a_watchdog() -> None:
    time.sleep(SECONDS * AFTER_COLLECTIVES)
    os.abort()


def one_waits_for_the_other() -> None:
    import torch.distributed as dist

    if dist.get_rank() == 0:
        aborted_by_a_watchdog()
    stuck_in_a_loop()


def crash_early() -> None:
    os.abort()


def hung(function: object) -> RankError:
    pool = RankPool(timeout=SECONDS)
    try:
        with pytest.raises(RankError) as caught:
            pool.run(2, function)
    finally:
        pool.close()
    return caught.value


def test_an_abort_after_the_deadline_of_collectives_is_a_hang() -> None:
    """The rank that the others waited for is named, by the line that it was in."""
    error = hung(one_waits_for_the_other)
    assert (error.rank, error.cause) == (1, "hung")
    assert "in stuck_in_a_loop" in str(error)
    assert "rank 0: killed by SIGABRT" in str(error)


def test_stacks_are_taken_before_the_watchdog_ends_all_ranks() -> None:
    """Afterwards there is nobody left to ask."""
    error = hung(aborted_by_a_watchdog)
    assert error.cause == "hung"
    for rank in range(2):
        stacks = str(error).partition(f"Stacks of rank {rank}:\n")[2].partition("\n\n")[0]
        assert "in aborted_by_a_watchdog" in stacks


def test_an_abort_before_that_is_a_crash() -> None:
    """Nothing has timed out by then."""
    assert hung(crash_early).cause == "died"
