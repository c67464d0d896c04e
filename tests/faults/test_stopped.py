"""A rank that is stopped: it neither works nor ends, and hears no signal but SIGKILL."""

from __future__ import annotations

import os
import signal

from slack import slack

DEADLINE = 5.0
"""Seconds; ranks have a tenth of them to say that a collective gave up, also on a busy machine."""


def stop():
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(1))


def test_a_stopped_rank_is_named(suffer):
    """It cannot say where it is, which tells it from its peer."""
    suffered = suffer(stop, timeout=DEADLINE)
    assert (suffered.error.rank, suffered.error.cause) == (1, "hung")
    assert suffered.headline.endswith("hung: no answer within 5 s")
    assert "Stacks of rank 1:\nnone: the process did not react" in suffered.text
    assert suffered.seconds < DEADLINE + slack()
