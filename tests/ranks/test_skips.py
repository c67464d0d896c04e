"""A job may ask to be skipped: if all ranks do, the test is skipped, and otherwise it failed."""

from __future__ import annotations

import time
import unittest

import pytest
from slack import slack

from pytest_precision import RankError
from pytest_precision.errors import RanksSkipped
from pytest_precision.ranks import RankPool
from pytest_precision.ranks.needs import Needs
from pytest_precision.ranks.state.environment import Environment


def skip(word="planted"):
    pytest.skip(word)


def skip_as_unittest():
    raise unittest.SkipTest("planted")


def skip_by_rank():
    import torch.distributed as dist

    # One after the other: a rank that is slow to skip is not a rank that does not.
    time.sleep(1.5 * dist.get_rank())
    pytest.skip(f"on rank {dist.get_rank()}")


def skip_alone():
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 1:
        pytest.skip("planted")
    dist.all_reduce(torch.ones(1))


def skip_beside_one_that_is_done():
    import torch.distributed as dist

    if dist.get_rank() == 1:
        pytest.skip("planted")


def skip_after_a_failure():
    import torch.distributed as dist

    if dist.get_rank() == 0:
        raise KeyError("first")
    time.sleep(0.5)
    pytest.skip("planted")


def healthy():
    return "fine"


@pytest.mark.parametrize("function", [skip, skip_as_unittest])
def test_all_ranks_skip(pool, function):
    """The reason comes out once, and the next job runs."""
    with pytest.raises(RanksSkipped, match=r"^planted$"):
        pool.run(2, function)
    assert pool.run(2, healthy) == ["fine", "fine"]


def test_ranks_skip_when_they_get_there(pool):
    """One that skips later than another's grace would allow has skipped too; reasons are listed."""
    with pytest.raises(RanksSkipped, match=r"^on rank 0; on rank 1$"):
        pool.run(2, skip_by_rank)


@pytest.mark.parametrize("function", [skip_alone, skip_beside_one_that_is_done])
def test_a_rank_that_skips_alone_is_a_failure(pool, function):
    """At once, though its peer waits for it; the text says who skipped and who did not."""
    started = time.monotonic()
    with pytest.raises(RankError) as caught:
        pool.run(2, function)
    assert time.monotonic() - started < slack()
    assert (caught.value.rank, caught.value.cause) == (1, "skipped")
    headline = str(caught.value).splitlines()[0]
    assert "rank 1 skipped, rank 0 did not" in headline
    assert headline.endswith("The reason was: planted")
    assert pool.run(2, healthy) == ["fine", "fine"]


def test_a_failure_before_a_skip_is_the_cause(pool):
    """The first in time counts, and the skip is one of its consequences."""
    with pytest.raises(RankError, match="raised KeyError: 'first'") as caught:
        pool.run(2, skip_after_a_failure)
    assert "rank 1: skipped: planted" in str(caught.value)


def test_a_skip_needs_no_pytest(tmp_path, monkeypatch):
    """A rank of its own interpreter, not the fork server's, does not import it to know one."""
    (tmp_path / "plain_job.py").write_text(
        "import sys, unittest\n"
        "def job():\n"
        "    raise unittest.SkipTest(str('pytest' in sys.modules))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import plain_job

    ranks = RankPool("fresh", timeout=30)
    with pytest.raises(RanksSkipped, match="False"):
        ranks.run(1, plain_job.job, needs=Needs(Environment.now((("PLANTED", "yes"),))))


def test_inline_a_skip_is_the_functions_own():
    """There is nobody to agree with."""
    with pytest.raises(pytest.skip.Exception, match="planted"):
        RankPool("inline", timeout=30).run(1, skip)
