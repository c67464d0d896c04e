"""A rank that leaves by an exception which is no error elsewhere."""

from __future__ import annotations

import sys

import pytest
from slack import slack


def leave(how):
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 1:
        if how == "interrupt":
            raise KeyboardInterrupt
        sys.exit(how)
    dist.all_reduce(torch.ones(1))


FAULTS = [(leave, (how,)) for how in ("planted", 0, "interrupt")]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("planted", "exited SystemExit: planted"),
        (0, "exited SystemExit: 0"),
        ("interrupt", "exited KeyboardInterrupt"),
    ],
)
def test_a_request_to_exit_fails_the_test_alone(suffer, how, words):
    """It ends the rank and not the session, and a status of 0 is no success."""
    suffered = suffer(leave, how)
    assert (suffered.error.rank, suffered.error.cause) == (1, "exited")
    assert suffered.headline == f"rank 1 of 2 in test_exit_request:leave {words}"
    assert suffered.seconds < slack()
