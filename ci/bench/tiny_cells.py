"""What the launchers run: a job that does nothing, and a tiny training; and the tests around them.

As a script it is one rank of a launch by torchrun: `torchrun … tiny_cells.py training`. As a file
of tests it reads from the environment which job, CELLS_JOB, and how many tests, CELLS_NUMBER.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_precision.errors import RankError

JOB = os.environ.get("CELLS_JOB", "trivial")
NUMBER = int(os.environ.get("CELLS_NUMBER", "1"))

TORCHRUN = sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"

STEPS = 4


def trivial() -> None:
    """Nothing."""


def training() -> None:
    """Four steps of a perceptron under FSDP2, and four under DDP."""
    import torch
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    for sharded in (True, False):
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)
        )
        if sharded:
            for layer in (model[0], model[2]):
                fully_shard(layer)
            module: torch.nn.Module = fully_shard(model)
        else:
            module = DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(module.parameters())
        for _ in range(STEPS):
            module(torch.randn(32, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def timed(job: Callable[[], None]) -> float:
    """Seconds that a job itself takes on this rank."""
    started = time.perf_counter()
    job()
    return time.perf_counter() - started


def die() -> None:
    """Ends the ranks."""
    os._exit(3)


each = pytest.mark.parametrize("number", range(NUMBER))
on_two = pytest.mark.world_size(2)


@each
def test_pytest(number: int) -> None:
    """What a test costs that does nothing."""


@each
@on_two
def test_ranks(number: int, ranks: Any, record_property: Callable[[str, object], None]) -> None:
    """A kept group, or a fresh one with that option."""
    record_property("seconds", max(ranks.run(timed, globals()[JOB])))


@each
@on_two
def test_crash(number: int, ranks: Any, record_property: Callable[[str, object], None]) -> None:
    """The first job after one in which the ranks died."""
    with pytest.raises(RankError):
        ranks.run(die)
    started = time.perf_counter()
    ranks.run(trivial)
    record_property("seconds", time.perf_counter() - started)


@each
def test_torchrun(number: int) -> None:
    """A launch for each test."""
    subprocess.run([*TORCHRUN, __file__, JOB], check=True, capture_output=True)


@pytest.fixture(scope="session")
def launched() -> Iterator[None]:
    """The process group of all tests, where pytest itself is launched."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()


@each
@pytest.mark.usefixtures("launched")
def test_launched(number: int) -> None:
    """Nobody notices a rank that failed, and nobody frees its peer: tests run in step or hang."""
    import torch.distributed as dist

    globals()[JOB]()
    dist.barrier()


def main(job: str) -> None:
    """One rank of a launch for a single test."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    globals()[job]()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main(sys.argv[1])
