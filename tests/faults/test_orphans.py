"""A rank that fails and has started a process."""

from __future__ import annotations

import os
import time

import psutil
import pytest
from slack import slack


def start_a_child_and_fail(in_a_session_of_its_own, dies=False):
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 1:
        child = os.fork()
        if child == 0:
            if in_a_session_of_its_own:
                os.setsid()
            time.sleep(600)
        print(f"child {child}", flush=True)
        if dies:
            os._exit(3)
        raise KeyError("planted")
    dist.all_reduce(torch.ones(1))


def has_ended(suffered):
    """Whether the child of the rank that failed is gone."""
    [line] = [line for line in suffered.text.splitlines() if line.startswith("child ")]
    try:
        # Its new parent may be slow to bury it.
        return psutil.Process(int(line.split()[1])).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


FAULTS = [(start_a_child_and_fail, given) for given in [(False,), (True,), (True, True)]]


@pytest.mark.parametrize("in_a_session_of_its_own", [False, True])
def test_what_a_rank_started_ends_with_it(suffer, in_a_session_of_its_own):
    """Its copy of the rank's sockets does not hold up the peer that waits for their end."""
    suffered = suffer(start_a_child_and_fail, in_a_session_of_its_own)
    assert (suffered.error.rank, suffered.error.cause) == (1, "raised")
    assert "no answer" not in suffered.text
    assert has_ended(suffered)
    assert suffered.seconds < slack()


def test_what_a_rank_started_ends_also_if_the_rank_is_gone_first(suffer):
    """The fork server has adopted it by then; it must not wait for the end of the session."""
    suffered = suffer(start_a_child_and_fail, True, True)
    assert (suffered.error.rank, suffered.error.cause) == (1, "died")
    assert has_ended(suffered)
