"""A rank that fails while its peer waits for it: one error, the cause; and the next job runs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time

import psutil
import pytest

from pytest_precision.ranks import RankError, Ranks


class UnsendableError(Exception):
    def __reduce__(self):
        raise RuntimeError("does not pickle")

    def __str__(self):
        raise RuntimeError("does not print")


def fail(how):
    """Rank 1 fails; rank 0 is in a collective that it does not join."""
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 1:
        print("last words")
        os.write(2, b"below python\n")
        how()
    dist.all_reduce(torch.ones(1))


def raise_error():
    raise KeyError("planted")


def raise_eof():
    """The error that a rank itself gets when its controller is gone."""
    raise EOFError("planted")


def raise_unsendable():
    raise UnsendableError


def raise_chained():
    try:
        raise_error()
    except KeyError as error:
        raise ValueError("outer") from error


def exit_3():
    os._exit(3)


def kill_myself():
    os.kill(os.getpid(), signal.SIGKILL)


def crash():
    ctypes.string_at(0)


def leave():
    sys.exit("planted")


def interrupt():
    raise KeyboardInterrupt


def write_megabytes():
    print("x" * 5_000_000)
    print("the end")
    raise_error()


def start_a_child_and_fail():
    child = os.fork()
    if child == 0:
        time.sleep(600)
    print(f"child {child}")
    raise_error()


def raise_at_length():
    raise ValueError("x" * 5_000_000)


def fail_beside_a_loop():
    while os.environ["RANK"] == "0":
        pass
    raise_error()


def healthy():
    return "fine"


@pytest.mark.parametrize(
    ("how", "cause", "words"),
    [
        (raise_error, "raised", "raised KeyError: 'planted'"),
        (raise_eof, "raised", "raised EOFError: planted"),
        (raise_unsendable, "raised", "UnsendableError"),
        (exit_3, "died", "died: exit status 3"),
        (kill_myself, "died", "died: killed by SIGKILL"),
        (crash, "died", "died: killed by SIGSEGV"),
        (leave, "exited", "exited SystemExit: planted"),
        (interrupt, "exited", "exited KeyboardInterrupt"),
    ],
)
def test_a_failing_rank_is_the_one_failure(pool, how, cause, words):
    """Named with its cause, soon, though its peer fails too; the next job has a new group."""
    started = time.monotonic()
    with pytest.raises(RankError) as caught:
        pool.run(2, fail, how)
    assert time.monotonic() - started < 5
    assert (caught.value.rank, caught.value.cause) == (1, cause)
    headline = str(caught.value).splitlines()[0]
    assert headline.startswith("rank 1 of 2 in test_faults:fail ")
    assert words in headline
    assert "\nrank 0: RuntimeError" in str(caught.value)
    assert pool.run(2, healthy) == ["fine", "fine"]


def test_a_group_that_cannot_start_is_a_failure(monkeypatch):
    """The ranks' own error comes out, and that it was the start."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "missing0")
    ranks = Ranks("fresh", timeout=30)
    with pytest.raises(RankError, match="in the start of the group raised") as caught:
        ranks.run(2, healthy)
    assert caught.value.cause == "raised"
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    assert ranks.run(2, healthy) == ["fine", "fine"]


def test_the_text_has_traceback_and_output(pool):
    """Of the failing rank: the user's frames and causes, and what it wrote by any means."""
    with pytest.raises(RankError) as caught:
        pool.run(2, fail, raise_chained)
    text = str(caught.value)
    assert caught.value.exception == "builtins.ValueError"
    assert "in raise_error" in text
    assert "direct cause" in text
    assert "pytest_precision" not in text
    assert "last words\nbelow python\n" in text


def test_the_output_shown_is_its_end(pool):
    """However much a rank wrote."""
    with pytest.raises(RankError) as caught:
        pool.run(2, fail, write_megabytes)
    assert "xxx\nthe end\n" in str(caught.value)
    assert len(str(caught.value)) < 20_000


def test_the_message_shown_is_bounded(pool):
    """However long the exception's text is: its two ends are there."""
    with pytest.raises(RankError, match=r"characters left out") as caught:
        pool.run(2, fail, raise_at_length)
    assert len(str(caught.value)) < 100_000


def test_a_peer_that_is_not_freed_is_ended(pool):
    """A rank that is in no collective does not notice; it has a grace, not the whole deadline."""
    started = time.monotonic()
    with pytest.raises(RankError) as caught:
        pool.run(2, fail_beside_a_loop)
    assert time.monotonic() - started < 10
    assert (caught.value.rank, caught.value.cause) == (1, "raised")
    assert "rank 0: no answer, ended" in str(caught.value)


def test_what_a_rank_started_ends_with_it(pool):
    """Its whole session is killed, so that no child of a child holds on to anything."""
    with pytest.raises(RankError) as caught:
        pool.run(2, fail, start_a_child_and_fail)
    [line] = [line for line in str(caught.value).splitlines() if line.startswith("child ")]
    with contextlib.suppress(psutil.NoSuchProcess):
        child = psutil.Process(int(line.split()[1]))
        assert child.status() == psutil.STATUS_ZOMBIE  # init may be slow to bury it
    assert "no answer" not in str(caught.value), "the child's copy of the socket held the peer"
