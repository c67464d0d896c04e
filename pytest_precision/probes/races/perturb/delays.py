"""Make one rank late at phases and collectives, so that race conditions change the result.

A layout that overlaps communication with computation may read what has not arrived, or write to
what is still being sent. Among equally fast ranks it rarely does. On a GPU streams are late: a
sleep of the host orders nothing there.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch.distributed as dist

from pytest_precision._torch.dispatch import sleep_on_device
from pytest_precision.ranks.state.accelerator import started

LONGEST_DELAY = 0.01
"""Seconds of the longest single delay."""

Method = Callable[..., Any]

_COLLECTIVES = ("all", "barrier", "broadcast", "gather", "recv", "reduce", "scatter", "send")
"""How the names of the methods of a process group begin that communicate."""


@contextmanager
def delays(number: int) -> Iterator[Callable[[], None]]:
    """Delay one rank before each collective that it calls from Python, inside the context.

    Args:
        number: seed of the lengths; the rank that is late is `late_rank` of it.

    Yields:
        what delays the rank elsewhere: `on_time` on a rank that is in time.
    """
    if dist.get_rank() != late_rank(number, dist.get_world_size()):
        yield on_time
        return
    drawn = random.Random(number)
    devices = [module for _, module in started()]

    def pause() -> None:
        seconds = drawn.uniform(0, LONGEST_DELAY)
        if devices:
            sleep_on_device(devices[-1], seconds)
        else:
            time.sleep(seconds)

    group = dist.ProcessGroup
    # As the class has them: what `getattr` returns would not bind a group any more.
    methods = {name: method for name, method in vars(group).items() if _communicates(name)}
    for name in methods:
        method = getattr(group, name)
        setattr(
            group, name, _beside(devices[-1], pause, method) if devices else _after(pause, method)
        )
    try:
        yield pause
    finally:
        for name, method in methods.items():
            setattr(group, name, method)


def on_time() -> None:
    """Do nothing: the delay function of ranks that are not made late."""


def late_rank(number: int, world_size: int) -> int:
    """Return which rank is late in a run with this number: each in turn."""
    return number % world_size


def _communicates(name: str) -> bool:
    return name.lstrip("_").startswith(_COLLECTIVES)


def _after(pause: Callable[[], None], method: Method) -> Method:
    """Wrap a method so that it sleeps before each call."""

    @wraps(method)
    def delayed(*args: Any, **kwargs: Any) -> Any:
        pause()
        return method(*args, **kwargs)

    return delayed


def _beside(device: Any, pause: Callable[[], None], method: Method) -> Method:
    """Wrap a collective to run on a separate GPU stream, which is stalled before each call.

    A collective waits on a stream of its own, so that it is late for what its caller goes on with:
    whoever reads its result without waiting for it reads too early.
    """

    @wraps(method)
    def delayed(*args: Any, **kwargs: Any) -> Any:
        callers, stream = device.current_stream(), device.Stream()
        stream.wait_stream(callers)
        with device.stream(stream):
            pause()
            work = method(*args, **kwargs)
        # One that its caller does not wait for runs on the current stream, which is `stream`.
        if any(
            getattr(argument, "asyncOp", True) is False for argument in (*args, *kwargs.values())
        ):
            callers.wait_stream(stream)
        return work

    return delayed
