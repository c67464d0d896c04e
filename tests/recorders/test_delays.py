"""Delays: before each collective that Python starts, and gone afterwards."""

from __future__ import annotations

import time
import types
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist

from pytest_precision.probes.races.perturb.delays import LONGEST_DELAY, delays, late_rank
from pytest_precision.recorders.run_modes import delayed
from pytest_precision.recorders.variant import USUAL

pytestmark = pytest.mark.usefixtures("one_rank")


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The lengths of all delays so far."""
    lengths: list[float] = []
    monkeypatch.setattr(time, "sleep", lengths.append)
    return lengths


def communicate() -> None:
    """Use the four collectives that layouts overlap, and wait for each."""
    whole = torch.ones(4)
    dist.all_reduce(whole)
    dist.broadcast(whole, 0)
    dist.all_to_all_single(torch.empty(4), whole, async_op=True).wait()
    dist.all_gather([torch.empty(4)], whole)


def test_the_late_rank_sleeps_before_each_collective(slept: list[float]) -> None:
    """For lengths that the number of the run decides."""
    for _ in range(2):
        with delays(3):
            communicate()
    assert slept[:4] == slept[4:]
    assert all(0 <= length <= LONGEST_DELAY for length in slept)
    assert len(set(slept)) == 4


def test_no_collective_is_delayed_afterwards(slept: list[float]) -> None:
    """And every method of a process group is the one that it was."""
    before = dict(vars(dist.ProcessGroup))
    with delays(1):
        assert vars(dist.ProcessGroup)["allreduce"] is not before["allreduce"]
    communicate()
    assert slept == []
    assert {name: vars(dist.ProcessGroup)[name] for name in before} == before


def test_a_run_without_a_number_has_none(slept: list[float]) -> None:
    """That of an ordinary check."""
    with delayed(USUAL) as pause:
        communicate()
    assert (pause, slept) == (None, [])


def test_each_rank_is_late_in_turn() -> None:
    """Two runs for two ranks, eight for eight."""
    for world_size in (2, 3, 8):
        late = {late_rank(number, world_size) for number in range(1, world_size + 1)}
        assert late == set(range(world_size))


class Stream:
    """A stream of a device that is made up: it says when what was queued on it will be done."""

    def __init__(self) -> None:
        self.busy_until = 0

    def wait_stream(self, other: Stream) -> None:
        self.busy_until = max(self.busy_until, other.busy_until)


class Streams(types.ModuleType):
    """The module of that device, with one current stream."""

    def __init__(self) -> None:
        super().__init__("streams")
        self.current, self.Stream = Stream(), Stream
        self.begun: list[int] = []

    def is_initialized(self) -> bool:
        return True

    def current_stream(self) -> Stream:
        return self.current

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def _sleep(self, cycles: int) -> None:
        self.current.busy_until += cycles


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    """The streams of a device that torch takes for its accelerator, and when collectives begin."""
    module = Streams()
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("meta"))
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    reduce = dist.ProcessGroup.allreduce

    def begin(*args: object) -> object:
        module.begun.append(module.current.busy_until)
        return reduce(*args)

    monkeypatch.setattr(dist.ProcessGroup, "allreduce", begin)
    return module


@pytest.mark.parametrize("asynchronous", [True, False])
def test_on_a_device_a_collective_is_late_for_what_goes_on(
    streams: Streams, slept: list[float], asynchronous: bool
) -> None:
    """A sleep of the host, or on the caller's stream, would have the caller wait for it as well."""
    with delays(1) as pause:
        pause()
        callers = streams.current.busy_until
        assert callers > 0
        dist.all_reduce(torch.ones(4), async_op=asynchronous)
        [begun] = streams.begun
    assert slept == []
    assert begun > callers
    assert streams.current.busy_until == (callers if asynchronous else begun)
