"""An exception that can neither be pickled nor printed."""

from __future__ import annotations

from slack import slack


class UnsendableError(Exception):
    def __reduce__(self):
        raise RuntimeError("does not pickle")

    def __str__(self):
        raise RuntimeError("does not print")


def raises_unsendable():
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 1:
        raise UnsendableError
    dist.all_reduce(torch.ones(1))


def test_an_exception_travels_as_text(suffer):
    """Its type and its traceback are there, whatever else it cannot do."""
    suffered = suffer(raises_unsendable)
    assert (suffered.error.rank, suffered.error.cause) == (1, "raised")
    assert suffered.error.exception == "test_unpicklable.UnsendableError"
    assert "UnsendableError" in suffered.headline
    assert "in raises_unsendable" in suffered.text
    assert suffered.seconds < slack()
