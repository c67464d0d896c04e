"""A rank that skips what the others run."""

from __future__ import annotations

import pytest
from slack import slack


def skip():
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 1:
        pytest.skip("planted")
    dist.all_reduce(torch.ones(1))


def test_a_lone_skip_is_a_failure(suffer):
    """It would hide that the others had nobody to compute with."""
    suffered = suffer(skip)
    assert (suffered.error.rank, suffered.error.cause) == (1, "skipped")
    assert "rank 1 skipped, rank 0 did not" in suffered.headline
    assert "planted" in suffered.headline
    assert suffered.seconds < slack()
