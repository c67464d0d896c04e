"""A rank that is stuck in native code, where no Python runs, with and without Python's lock."""

from __future__ import annotations

import ctypes

import pytest
from slack import slack

DEADLINE = 5.0
"""Seconds; ranks have a tenth of them to say that a collective gave up, also on a busy machine."""


def stick(library):
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 1:
        getattr(ctypes, library)(None).sleep(600)
    dist.all_reduce(torch.ones(1))


FAULTS = [(stick, (library,)) for library in ("CDLL", "PyDLL")]


@pytest.mark.parametrize("library", ["CDLL", "PyDLL"])
def test_a_rank_in_native_code_is_named_with_its_stack(suffer, library):
    """The handler of the signal needs no lock: it says where in Python the call was made."""
    suffered = suffer(stick, library, timeout=DEADLINE)
    assert (suffered.error.rank, suffered.error.cause) == (1, "hung")
    assert suffered.headline == "rank 1 of 2 in test_native_loop:stick hung: no answer within 5 s"
    assert "in stick" in suffered.text.partition("Stacks of rank 1:")[2]
    assert suffered.seconds < DEADLINE + slack()
