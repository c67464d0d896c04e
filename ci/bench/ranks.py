"""What a group of ranks costs: to start the first, to start another, and for each job.

    python ci/bench/ranks.py [--world-size 2] [--jobs 300] [--groups 10]

All of it is the caller's waiting time. The first group pays for the fork server, which imports
torch; `kept` is a trivial job on a group that is there, and `bare` the least it could take: one
message to as many processes that do nothing but answer; `fresh` is the job on a group of its own,
from start to end; `after a crash` is the first job after one in which a rank died. `looking` is the
part of each job in which a rank tells what the job has left behind.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
import timeit
from collections.abc import Callable
from multiprocessing.connection import Connection
from statistics import median, quantiles

import measure

from pytest_precision.errors import RankError
from pytest_precision.ranks import RankPool
from pytest_precision.ranks.state import fingerprint
from pytest_precision.ranks.state.code import Code

ROW = "{:<14} {:>10} {:>10} {:>10}  {}"


def die() -> None:
    """A job that ends its ranks."""
    os._exit(3)


def seconds(function: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def looks() -> list[float]:
    """A job that looks at its process as every job does, again and again."""
    code = Code()

    def look() -> None:
        fingerprint.read_state()
        code.take_in()
        fingerprint.read_state(), code.changes(), code.has_new()

    return timeit.repeat(look, number=1, repeat=100)


def answer(connection: Connection) -> None:
    """A process that says what it is told."""
    while (message := connection.recv()) is not None:
        connection.send(message)


def bare(number: int) -> list[Connection]:
    """Connections to so many processes that answer."""
    connections = []
    for _ in range(number):
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        multiprocessing.get_context("spawn").Process(target=answer, args=(theirs,)).start()
        connections.append(ours)
    return connections


def exchange(connections: list[Connection]) -> None:
    """One message to each process, and its answer."""
    for connection in connections:
        connection.send("job")
    for connection in connections:
        connection.recv()


def show(name: str, samples: list[float], target: float) -> None:
    """One row, in milliseconds; the target is for the median."""
    middle = median(samples)
    ninth = quantiles(samples, n=10)[-1] if len(samples) > 1 else middle
    missed = "MISSED" if middle > target else ""
    cells = (f"{value * 1e3:.2f}" for value in (middle, ninth, target))
    print(ROW.format(name, *cells, missed), flush=True)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--groups", type=int, default=10)
    options = parser.parse_args()
    size = options.world_size
    kept_pool = RankPool(timeout=60)
    fresh = RankPool("fresh", timeout=60)
    print(ROW.format("ms a job", "median", "9th decile", "target", ""))
    show("first group", [seconds(lambda: kept_pool.run(size, os.getpid))], 2.5)
    others = bare(size)
    jobs = {"kept": lambda: kept_pool.run(size, os.getpid), "bare": lambda: exchange(others)}
    taken = measure.interleave(jobs, options.jobs)
    show("kept", taken["kept"], 0.003)
    show("bare", taken["bare"], 0.003)
    print(f"kept is {measure.ratio(taken, 'kept', 'bare'):.1f} times bare")
    for connection in others:
        connection.send(None)
    show("looking", kept_pool.run(1, looks)[0], 0.002)
    show("fresh", [seconds(lambda: fresh.run(size, os.getpid)) for _ in range(options.groups)], 0.2)
    crashed = []
    for _ in range(options.groups):
        try:
            kept_pool.run(size, die)
        except RankError:
            crashed.append(seconds(lambda: kept_pool.run(size, os.getpid)))
    show("after a crash", crashed, 0.2)
    show("close", [seconds(kept_pool.close)], 1.0)


if __name__ == "__main__":
    main()
