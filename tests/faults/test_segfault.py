"""A rank that crashes in native code."""

from __future__ import annotations

import ctypes

from slack import slack


def crash():
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 1:
        ctypes.string_at(0)
    dist.all_reduce(torch.ones(1))


def test_a_crash_is_named_with_its_python_stack(suffer):
    """Which stands in the rank's output, since there is no exception."""
    suffered = suffer(crash)
    assert (suffered.error.rank, suffered.error.cause) == (1, "died")
    assert suffered.headline == "rank 1 of 2 in test_segfault:crash died: killed by SIGSEGV"
    assert "Fatal Python error: Segmentation fault" in suffered.text
    assert "in crash" in suffered.text
    assert suffered.seconds < slack()
