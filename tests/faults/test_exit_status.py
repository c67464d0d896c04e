"""A rank that leaves without a word."""

from __future__ import annotations

import gc
import os
import signal
import stat
import time
from contextlib import closing, suppress
from multiprocessing.connection import Connection

import pytest
from slack import slack

from pytest_precision import RankError
from pytest_precision.matrix.variables import plain_variables
from pytest_precision.ranks import RankPool, handle
from pytest_precision.ranks.needs import Needs
from pytest_precision.ranks.process.process import EXIT_SECONDS
from pytest_precision.ranks.state.environment import Environment


def leave():
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 1:
        print("last words")
        os.write(2, b"below python\n")
        os._exit(3)
    dist.all_reduce(torch.ones(1))


def take_long():
    """Lose the connection, and have a status a while later, as with much memory on a GPU."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for found in gc.get_objects():
        if isinstance(found, Connection):
            found.close()
    time.sleep(EXIT_SECONDS + 0.5)
    os._exit(3)


def close_pipes():
    """Make the sentinel ready, and live."""
    for number in range(3, 256):
        with suppress(OSError):
            if stat.S_ISFIFO(os.fstat(number).st_mode):
                os.close(number)
    time.sleep(600)


def test_a_rank_that_closes_its_descriptors_is_not_waited_for():
    """A spawned one is taken for ended; it has no status until it is killed."""
    needs = Needs(Environment.now(plain_variables({"PLANTED": "declared"})))
    ranks = RankPool("fresh", timeout=60)
    with closing(ranks), pytest.raises(RankError, match="closed its connection"):
        ranks.run(1, close_pipes, needs=needs)


def test_a_status_that_comes_late_is_named(monkeypatch):
    """Not only that the rank has closed its connection."""
    monkeypatch.setattr(handle, "TERM_SECONDS", slack())  # a busy machine has it later still
    with closing(RankPool("fresh", timeout=30)) as ranks, pytest.raises(RankError) as caught:
        ranks.run(1, take_long)
    assert str(caught.value).startswith(f"rank 0 of 1 in {__name__}:take_long died: exit status 3")


def test_an_exit_is_named_with_its_status(suffer):
    """And with the end of what the rank wrote, by whatever means."""
    suffered = suffer(leave)
    assert (suffered.error.rank, suffered.error.cause) == (1, "died")
    assert suffered.headline == "rank 1 of 2 in test_exit_status:leave died: exit status 3"
    assert "last words\nbelow python\n" in suffered.text
    assert "\nrank 0: RuntimeError" in str(suffered.error)
    assert suffered.seconds < slack()
