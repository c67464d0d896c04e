"""A rank that is killed from outside: by an administrator, or by the kernel for its memory."""

from __future__ import annotations

import os
import signal

from slack import slack


def killed():
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))


def test_a_killed_rank_is_named_with_its_signal(suffer):
    """Its peer feels it before the controller does, and is no cause all the same."""
    suffered = suffer(killed)
    assert (suffered.error.rank, suffered.error.cause) == (1, "died")
    assert suffered.headline == "rank 1 of 2 in test_killed:killed died: killed by SIGKILL"
    assert "\nrank 0: RuntimeError" in suffered.text
    assert suffered.seconds < slack()
