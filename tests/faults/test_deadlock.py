"""Ranks that wait for each other."""

from __future__ import annotations

import pytest
from slack import slack

from pytest_precision import RankError
from pytest_precision.ranks import RankPool

DEADLINE = 5.0
"""Seconds; ranks have a tenth of them to say that a collective gave up, also on a busy machine."""


def in_different_order():
    """Two collectives in two groups, as tensor and data parallelism have them."""
    import torch
    import torch.distributed as dist

    one, other = dist.new_group([0, 1]), dist.new_group([0, 1])
    for group in (one, other) if dist.get_rank() == 0 else (other, one):
        dist.all_reduce(torch.ones(1), group=group)


def alone():
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))


FAULTS = [(in_different_order, ()), (alone, ())]


def test_collectives_in_different_order_are_both_shown(suffer):
    """No rank is to blame: the text has the stacks of all."""
    suffered = suffer(in_different_order, timeout=DEADLINE)
    assert suffered.error.cause == "hung"
    assert suffered.headline.endswith("hung: no answer within 5 s")
    for stacks in suffered.text.split("Stacks of rank 1:"):
        assert "in all_reduce" in stacks
        assert "in in_different_order" in stacks
    assert "pytest_precision" not in suffered.text, "threads of the package are left out"
    assert suffered.seconds < DEADLINE + slack()


def test_a_collective_that_gave_up_is_no_exception_of_its_own(suffer):
    """It raises on rank 0 shortly before the deadline, but the cause is time."""
    suffered = suffer(alone, timeout=DEADLINE)
    assert (suffered.error.rank, suffered.error.cause) == (0, "hung")
    assert "in alone" in suffered.text
    assert "rank 1: done" in suffered.text
    assert suffered.seconds < DEADLINE + slack()


def test_a_collective_that_waits_longer_than_the_job_is_ended(nothing_left):
    """A job with a short deadline of its own runs on a group whose collectives have a long one."""
    ranks = RankPool(timeout=30)
    with pytest.raises(RankError) as caught:
        ranks.run(2, alone, timeout=DEADLINE)
    assert (caught.value.rank, caught.value.cause) == (0, "hung")
    assert "in all_reduce" in str(caught.value).partition("Stacks of rank 0:")[2]
    assert "rank 1: done" in str(caught.value)
    ranks.close()
