"""An answer counts only for the job that was asked, and a recording only if it is not empty."""

from __future__ import annotations

import sys

import pytest

from pytest_precision import RankError
from pytest_precision.ranks.blame import require_observations
from pytest_precision.ranks.process.messages import Done, Payload

WITHOUT = Payload(b"\x80\x04N.")
"""None, pickled."""


def answer_before_the_end(nonce):
    """Says `nonce` over the connection of the rank, which is in a frame above."""
    import torch.distributed as dist

    frame = sys._getframe()
    while frame is not None and "connection" not in frame.f_locals:
        frame = frame.f_back
    if dist.get_rank() == 1:
        frame.f_locals["connection"].send(Done(WITHOUT, nonce))
    return "ran"


def healthy():
    return "fine"


@pytest.mark.parametrize("nonce", ["", "that of another job"])
def test_an_answer_to_another_job_is_none(pool, nonce):
    """The rank is named, with what it said; the next job has ranks that say nothing of the sort."""
    with pytest.raises(RankError) as caught:
        pool.run(2, answer_before_the_end, nonce)
    assert (caught.value.rank, caught.value.cause) == (1, "unproven")
    assert f"but got nonce={nonce!r}" in str(caught.value)
    assert f"in {__name__}:answer_before_the_end gave no proof that it ran" in str(caught.value)
    assert pool.run(2, healthy) == ["fine", "fine"]


@pytest.mark.parametrize("count", [0, None])
def test_a_recording_without_observations_is_none(count):
    """Of any rank, also where the others recorded something."""
    with pytest.raises(RankError, match=r"rank 1 of 2 in layout .* but got count=") as caught:
        require_observations([12, count], "layout")
    assert caught.value.cause == "unproven"
    require_observations([12, 12], "layout")
