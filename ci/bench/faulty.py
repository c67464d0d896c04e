"""Jobs of which some fail, for the soak: on one rank, in one of many ways."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

SHARE = 0.25
"""Of the jobs that fail."""


class UnsendableError(Exception):
    def __reduce__(self) -> str:
        raise RuntimeError("does not pickle")


def raise_error() -> None:
    raise KeyError("planted")


def raise_unsendable() -> None:
    raise UnsendableError


def leave() -> None:
    sys.exit("planted")


def exit_3() -> None:
    os._exit(3)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crash() -> None:
    ctypes.string_at(0)


def flood() -> None:
    print("x" * 5_000_000)
    raise_error()


def orphan() -> None:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    raise_error()


def loop() -> None:
    while True:
        pass


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


class Fault(NamedTuple):
    """What a rank does instead of its work, the cause that must be named, and how often it is."""

    act: Callable[[], None]
    cause: str
    weight: int


FAULTS = (
    Fault(raise_error, "raised", 8),
    Fault(raise_unsendable, "raised", 4),
    Fault(leave, "exited", 4),
    Fault(exit_3, "died", 8),
    Fault(killed, "died", 8),
    Fault(crash, "died", 4),
    Fault(flood, "raised", 4),
    Fault(orphan, "raised", 4),
    Fault(loop, "hung", 1),
    Fault(stop, "hung", 1),
)


class Task(NamedTuple):
    """One job: on how many ranks, what it computes with, and who does what instead."""

    world_size: int
    number: int
    payload: bytes
    fault: Fault | None
    culprit: int


def plan(jobs: int, seed: int) -> list[Task]:
    """So many jobs, the same for the same seed."""
    rng = random.Random(seed)
    tasks = []
    for number in range(jobs):
        world_size = rng.choice((1, 2, 2, 3))
        fault = None
        if rng.random() < SHARE:
            [fault] = rng.choices(FAULTS, [fault.weight for fault in FAULTS])
        payload = rng.randbytes(rng.choice((0, 1_000, 100_000)))  # a message, or a file
        tasks.append(Task(world_size, number, payload, fault, rng.randrange(world_size)))
    return tasks


def work(task: Task) -> tuple[int, int, bytes]:
    """The job: one rank may fail, in the middle of what all do together."""
    import torch
    import torch.distributed as dist

    total = torch.tensor([task.number + dist.get_rank()])
    dist.all_reduce(total)
    if task.fault is not None and dist.get_rank() == task.culprit:
        task.fault.act()
    dist.barrier()
    return dist.get_rank(), int(total.item()), task.payload


def test_task(task: Task, ranks: Any) -> None:
    """The test of the session, once for each task."""
    total = sum(task.number + rank for rank in range(task.world_size))
    expected = [(rank, total, task.payload) for rank in range(task.world_size)]
    assert ranks.run(work, task) == expected
