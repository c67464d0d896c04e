"""A rank that raises before, in or after a collective, with any exception."""

from __future__ import annotations

import pytest
from slack import slack


def raises(when):
    """Rank 1 fails; rank 0 waits for it in a collective, or is done."""
    import torch
    import torch.distributed as dist

    failing = dist.get_rank() == 1
    if failing and when == "before":
        raise KeyError("planted")
    if failing and when == "in":
        dist.all_reduce(torch.ones(1, dtype=torch.float8_e4m3fn))
    dist.all_reduce(torch.ones(1))
    if failing and when == "after":
        raise KeyError("planted")


def raises_chained():
    try:
        raises("before")
    except KeyError as error:
        raise ValueError("outer") from error


def raises_eof():
    """The error that a rank itself gets when its controller is gone."""
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 1:
        raise EOFError("planted")
    dist.all_reduce(torch.ones(1))


def raises_at_length():
    raise ValueError("x" * 5_000_000)


def raises_before_it_runs():
    compile("import torch\nloop(", "train.py", "exec")


FAULTS = [
    *((raises, (when,)) for when in ("before", "in", "after")),
    (raises_chained, ()),
    (raises_eof, ()),
    (raises_at_length, ()),
    (raises_before_it_runs, ()),
]


def test_a_syntax_error_says_what_it_is(suffer):
    """A traceback names the file first, and the error last."""
    suffered = suffer(raises_before_it_runs)
    assert suffered.headline.endswith("raised SyntaxError: '(' was never closed (train.py, line 2)")


@pytest.mark.parametrize(
    ("when", "exception", "words", "peer"),
    [
        ("before", "builtins.KeyError", "raised KeyError: 'planted'", "RuntimeError"),
        ("in", "builtins.RuntimeError", "raised RuntimeError: Invalid scalar type", "RuntimeError"),
        ("after", "builtins.KeyError", "raised KeyError: 'planted'", "done"),
    ],
)
def test_the_rank_that_raised_is_the_cause(suffer, when, exception, words, peer):
    """Its peer's error, which says that a connection was closed, is a consequence."""
    suffered = suffer(raises, when)
    assert (suffered.error.rank, suffered.error.cause) == (1, "raised")
    assert suffered.error.exception == exception
    assert suffered.headline == f"rank 1 of 2 in test_raise:raises {words}"
    assert f"\nrank 0: {peer}" in suffered.text
    assert suffered.seconds < slack()


def test_the_traceback_is_the_users(suffer):
    """With the cause of an exception, and without frames of the package."""
    suffered = suffer(raises_chained)
    assert suffered.error.exception == "builtins.ValueError"
    assert "in raises_chained" in suffered.text
    assert "in raises\n" in suffered.text
    assert "direct cause" in suffered.text
    assert "pytest_precision" not in suffered.text
    assert suffered.seconds < slack()


def test_an_end_of_file_is_the_jobs_own(suffer):
    """It is not taken for the end of the connection to the controller."""
    suffered = suffer(raises_eof)
    assert (suffered.error.rank, suffered.error.cause) == (1, "raised")
    assert suffered.headline.endswith("raised EOFError: planted")
    assert suffered.seconds < slack()


def test_a_long_message_is_cut(suffer):
    """Its two ends are there, and how much is not."""
    suffered = suffer(raises_at_length)
    assert suffered.error.exception == "builtins.ValueError"
    assert "characters left out" in suffered.text
    assert len(suffered.text) < 100_000
    assert suffered.seconds < slack()
