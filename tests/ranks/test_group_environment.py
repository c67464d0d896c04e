"""Environment variables: the caller's of the moment, and those that a function declares."""

from __future__ import annotations

import functools
import os
import sys
import threading
from contextlib import closing
from dataclasses import dataclass, replace

import psutil
import pytest

from pytest_precision.layouts import with_environment
from pytest_precision.matrix.declared import Declared
from pytest_precision.matrix.variables import plain_variables
from pytest_precision.ranks import RankPool
from pytest_precision.ranks.needs import Needs
from pytest_precision.ranks.pool import KEPT, RANK_BYTES
from pytest_precision.ranks.process.process import RankProcess
from pytest_precision.ranks.state.environment import Environment, patched


def variable(name):
    return os.environ.get(name)


def process():
    return os.getpid()


def what_torch_read():
    import torch
    import torch._dynamo

    return torch._dynamo.config.disable, torch.get_num_threads()


def inherited():
    return os.environ["PLANTED"], os.environ["RANK"]


@with_environment(PLANTED="declared")
def declares():
    return None


def undeclared():
    return None


def declaring(**variables):
    return Needs(Environment.now(plain_variables(variables)))


@pytest.fixture
def own_pool():
    ranks = RankPool(timeout=60, memory=0)
    yield ranks
    ranks.close()


def test_what_the_caller_sets_later_is_seen(pool, monkeypatch):
    """A kept group serves no caller with other variables, and is there when they are back."""
    before = pool.run(2, process)
    monkeypatch.setenv("PLANTED", "later")
    assert pool.run(2, variable, "PLANTED") == ["later", "later"]
    monkeypatch.delenv("PLANTED")
    assert pool.run(2, variable, "PLANTED") == [None, None]
    assert pool.run(2, process) == before


def test_what_changes_with_every_test_does_not_count(pool, monkeypatch):
    """The name of the current test opens no group; ranks, which outlive it, do not have it."""
    before = pool.run(1, process)
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "another")
    assert pool.run(1, process) == before
    assert pool.run(1, variable, "PYTEST_CURRENT_TEST") == [None]


@dataclass(frozen=True)
class Seen:
    """What ranks with declared variables have told, which are slow to start: they import torch.

    Attributes:
        plain: what torch had read on a rank without any.
        torch: what it had read on the rank with some.
        variables: PLANTED and RANK there.
        processes: of the rank, as it was started by a thread that has ended, and of later jobs.
        other: process of a rank without any.
    """

    plain: tuple[bool, int]
    torch: tuple[bool, int]
    variables: tuple[str, str]
    processes: list[int]
    other: int


@pytest.fixture(scope="module")
def declared() -> Seen:
    """Ranks with declared variables, of which the caller has one, too."""
    needed = {"TORCH_COMPILE_DISABLE": "1", "OMP_NUM_THREADS": "2", "RANK": "7"}
    with closing(RankPool(timeout=60, memory=0)) as ranks, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLANTED", "caller")
        needs = declaring(PLANTED="declared", **needed)
        numbers: list[int] = []
        asks = threading.Thread(target=lambda: numbers.extend(ranks.run(1, process, needs=needs)))
        asks.start()
        asks.join()
        seen = Seen(
            *ranks.run(1, what_torch_read),
            *ranks.run(1, what_torch_read, needs=needs),
            *ranks.run(1, inherited, needs=needs),
            [*numbers, *ranks.run(1, process, needs=needs)],
            *ranks.run(1, process),
        )
        assert os.environ["PLANTED"] == "caller"
        assert "RANK" not in os.environ
    return seen


def test_declared_variables_are_there_before_torch(declared):
    """What torch reads when it is imported; the ranks are kept like any others."""
    assert declared.plain == (False, 1)
    assert declared.torch == (True, 2)
    assert declared.other not in declared.processes


def test_ranks_with_declared_variables_outlive_the_thread_that_asked(declared):
    """The kernel ends them with the thread that started them, which must not be the caller's."""
    first, again = declared.processes
    assert first == again


def test_declared_variables_beat_the_callers(declared):
    """And a rank's place beats both; the caller's own are as they were."""
    assert declared.variables == ("declared", "0")


def test_inline_declared_variables_are_set_for_the_job():
    """And gone after it."""
    ranks = RankPool("inline", timeout=30)
    assert ranks.run(1, variable, "PLANTED", needs=declaring(PLANTED="x")) == ["x"]
    assert "PLANTED" not in os.environ


def test_groups_that_are_kept_are_few(own_pool, monkeypatch):
    """The one used longest ago goes, with its processes; the others stay."""

    def process_with(value):
        monkeypatch.setenv("PLANTED", value)
        return own_pool.run(1, process)[0]

    first, second, *others = [process_with(str(number)) for number in range(KEPT)]
    assert process_with("0") == first
    assert process_with("another") not in [first, second, *others]
    assert not psutil.pid_exists(second)
    assert all(map(psutil.pid_exists, [first, *others]))


def test_more_groups_are_kept_where_there_is_memory(monkeypatch):
    """As many ranks as there is room for, whatever the number of groups."""
    ranks = RankPool(timeout=60, memory=(KEPT + 1) * RANK_BYTES["cpu"])
    found = []
    for number in range(KEPT + 2):
        monkeypatch.setenv("PLANTED", str(number))
        found += ranks.run(1, process)
    there = [psutil.pid_exists(number) for number in found]
    ranks.close()
    assert there == [False, *[True] * (KEPT + 1)]


def forked(membership):
    """Start a rank without its declared variables, and so without an interpreter of its own."""
    plain = membership.environment.declaring(())
    return RankProcess(replace(membership, environment=plain))


def test_ranks_with_interpreters_of_their_own_take_more_memory():
    """One of them leaves no room for a fifth group that two others would have room for.

    What a pool counts with is what a rank was asked to have.
    """
    ranks = RankPool(timeout=60, memory=(KEPT + 1) * RANK_BYTES["cpu"], start=forked)
    first = ranks.run(1, process)
    ranks.run(1, process, needs=declaring(PLANTED="declared"))
    for number in range(2, KEPT + 1):
        ranks.run(1, process, needs=Needs(may_leave=(str(number),)))
    there = psutil.pid_exists(*first)
    ranks.close()
    assert not there


def test_a_partial_adds_to_what_its_function_declares():
    """The nearer one wins; a function without declaration has none."""
    partial = with_environment(OTHER="x")(functools.partial(declares))
    assert Declared.of(partial).environment == (("OTHER", "x"), ("PLANTED", "declared"))
    assert Declared.of(with_environment(PLANTED="y")(functools.partial(declares))).environment == (
        ("PLANTED", "y"),
    )
    assert Declared.of(declares).environment == (("PLANTED", "declared"),)
    assert Declared.of(undeclared).environment == Declared.of(sys).environment == ()


@pytest.mark.parametrize(
    ("variables", "got"),
    [({"NAME": 1}, "got NAME=1 (int)"), (["NAME"], r"got environment=['NAME'] (list)")],
)
def test_variables_are_text(variables, got):
    """Anything else is refused with its name, value and type."""
    with pytest.raises(TypeError) as refusal:
        plain_variables(variables)
    assert got in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("", "1"), ("A=B", "1"), ("A\0", "1"), ("A", "1\0"), ("A", "\ud800"), ("\udfff\ud800", "1")],
)
def test_variables_that_no_process_can_have(name, value):
    """They are refused where they are written, and not when a process is to start with them."""
    with pytest.raises(ValueError, match=r"^expected environment variables .* but got "):
        plain_variables({name: value})


def test_variables_that_are_not_patched_are_there_all_the_time():
    """A host starts ranks in threads, and what one of them reads is the environment of its rank."""
    names, over, lacking = {*os.environ}, threading.Event(), set()

    def read():
        while not over.is_set():
            lacking.update(names - os.environ.keys())

    reading, interval = threading.Thread(target=read), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        reading.start()
        for _ in range(2000):
            with patched({"PLANTED": "here"}):
                assert os.environ["PLANTED"] == "here"
    finally:
        over.set()
        reading.join()
        sys.setswitchinterval(interval)
    assert lacking == set()
    assert "PLANTED" not in os.environ
