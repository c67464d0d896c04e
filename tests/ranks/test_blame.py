"""Which of several failures is the cause: the first in time, whatever they say."""

from __future__ import annotations

import time
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_precision.ranks.blame import Evidence, failure_of
from pytest_precision.ranks.launch.remote import RemoteRank, Start
from pytest_precision.ranks.process.messages import Done, Ended, Payload, Raised
from pytest_precision.ranks.watch import Received, collect

DONE = Done(Payload(b""), "nonce")


def raised(when: float, *, seen: float | None = None, exited: bool = False) -> Received:
    said = Raised(when, exited, "builtins.ValueError", f"ValueError: at {when}", "the frames")
    return Received(said, when if seen is None else seen)


def died(status: int | None, when: float) -> Received:
    return Received(Ended(status, when), when)


def error_of(received: dict[int, Received], stacks: dict[int, str] | None = None):
    return failure_of(
        Evidence(
            world_size=3,
            received=received,
            started=100.0,
            seconds=10.0,
            overdue=109.0,
            doing="module:function",
            stacks=stacks or {},
            tails={rank: f"words of {rank}" for rank in range(3)},
        )
    )


def test_the_first_exception_is_the_cause():
    """By the ranks' own stamps, not by the order in which they were received."""
    error = error_of({0: raised(101.2, seen=101.3), 1: raised(101.1, seen=101.4), 2: raised(101.5)})
    assert (error.rank, error.cause, error.exception) == (1, "raised", "builtins.ValueError")
    assert str(error).startswith("rank 1 of 3 in module:function raised ValueError: at 101.1\n")


def test_a_death_comes_before_what_it_does_to_the_others():
    """Peers feel a death, and say so, before the controller hears of it."""
    error = error_of({0: raised(101.0), 1: died(-9, 101.05), 2: Received(DONE, 100.5)})
    assert (error.rank, error.cause) == (1, "died")


def test_a_death_elsewhere_came_when_its_host_saw_it():
    """The host may wait for the status before it tells; its clock may be ahead of this one."""
    line, host = Pipe()
    membership: Any = SimpleNamespace(rank=1)
    rank = RemoteRank(line, Start(membership, {}), ahead=2.0)
    host.send(Ended(-11, 103.0))
    assert collect([rank], time.monotonic() + 10)[1] == Received(Ended(-11, 101.0), 101.0)
    assert not rank.alive


def test_a_death_long_after_an_exception_is_its_consequence():
    """As of a watchdog that ends a process whose peer is gone."""
    error = error_of({0: raised(101.0), 1: died(-6, 101.5), 2: raised(101.1)})
    assert (error.rank, error.cause) == (0, "raised")
    assert "rank 1: killed by SIGABRT" in str(error)


def test_leaving_is_a_cause_of_its_own():
    """SystemExit and KeyboardInterrupt are told from exceptions."""
    error = error_of({0: Received(DONE, 1), 1: Received(DONE, 1), 2: raised(101.0, exited=True)})
    assert (error.rank, error.cause) == (2, "exited")


def test_silence_is_a_hang():
    """Of the silent ranks, one that does not even react to a signal is named."""
    error = error_of({0: Received(DONE, 101.0)}, stacks={1: "in a collective", 2: ""})
    assert (error.rank, error.cause) == (2, "hung")
    assert "in a collective" in str(error)
    assert "--precision-timeout" in str(error)


def test_a_collective_that_gives_up_is_a_sign_of_a_hang():
    """The rank that it waited for is the one that hung."""
    error = error_of({0: raised(109.1), 1: raised(109.2)}, stacks={2: "in a loop"})
    assert (error.rank, error.cause) == (2, "hung")


def test_a_collective_that_nobody_joins_hangs_itself():
    """Where every other rank is done, the rank in the collective is named."""
    error = error_of({0: Received(DONE, 101), 1: raised(109.1), 2: Received(DONE, 101)})
    assert (error.rank, error.cause) == (1, "hung")
    assert "the frames" in str(error)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (3, "died: exit status 3"),
        (0, "died: exit status 0"),
        (-11, "died: killed by SIGSEGV"),
        (-40, "died: killed by signal 40"),
        (None, "died: closed its connection"),
    ],
)
def test_a_death_is_told_by_its_status(status, words):
    """Exit status, or the signal's name."""
    error = error_of({rank: died(status, 101.0) for rank in range(3)})
    assert words in str(error).splitlines()[0]


def test_only_the_cause_has_its_output_shown():
    """The consequences are one line each."""
    error = error_of({0: raised(101.0), 1: raised(101.1), 2: Received(DONE, 100.5)})
    assert "words of 0" in str(error)
    assert "words of 1" not in str(error)
    assert "rank 1: ValueError: at 101.1 (after 1.100 s)\nrank 2: done" in str(error)
