"""A rank that leaves without a word."""

from __future__ import annotations

import os

from slack import slack


def leave():
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 1:
        print("last words")
        os.write(2, b"below python\n")
        os._exit(3)
    dist.all_reduce(torch.ones(1))


def test_an_exit_is_named_with_its_status(suffer):
    """And with the end of what the rank wrote, by whatever means."""
    suffered = suffer(leave)
    assert (suffered.error.rank, suffered.error.cause) == (1, "died")
    assert suffered.headline == "rank 1 of 2 in test_exit_status:leave died: exit status 3"
    assert "last words\nbelow python\n" in suffered.text
    assert "\nrank 0: RuntimeError" in str(suffered.error)
    assert suffered.seconds < slack()
