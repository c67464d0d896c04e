"""A rank that fails and has started a process."""

from __future__ import annotations

import contextlib
import os
import time

import psutil
import pytest


def start_a_child_and_fail(in_a_session_of_its_own):
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 1:
        child = os.fork()
        if child == 0:
            if in_a_session_of_its_own:
                os.setsid()
            time.sleep(600)
        print(f"child {child}")
        raise KeyError("planted")
    dist.all_reduce(torch.ones(1))


@pytest.mark.parametrize("in_a_session_of_its_own", [False, True])
def test_what_a_rank_started_ends_with_it(suffer, in_a_session_of_its_own):
    """Its copy of the rank's sockets does not hold up the peer that waits for their end."""
    suffered = suffer(start_a_child_and_fail, in_a_session_of_its_own)
    assert (suffered.error.rank, suffered.error.cause) == (1, "raised")
    assert "no answer" not in suffered.text
    [line] = [line for line in suffered.text.splitlines() if line.startswith("child ")]
    with contextlib.suppress(psutil.NoSuchProcess):
        child = psutil.Process(int(line.split()[1]))
        assert child.status() == psutil.STATUS_ZOMBIE  # init may be slow to bury it
    assert suffered.seconds < 5
