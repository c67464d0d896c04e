"""What the promise of a suite saves: `python ci/bench/promise.py [--rounds N] [--candidates N]`.

Many candidates are held to one reference, with layouts of the user's, with the promise that they
depend on their arguments and their cell alone and without it, in turns and each in a session of its
own. Without the promise each check records its reference anew, on ranks that are new. Processor
seconds are those of the session, its fork server and its ranks.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import closing
from functools import partial
from multiprocessing import forkserver
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

from pytest_precision import layouts, workloads
from pytest_precision.check.parity import Parity
from pytest_precision.engine.engine import Engine
from pytest_precision.matrix.cell import Cell
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources
from pytest_precision.workloads import Workload


def users(workload: Workload, cell: Cell, number: int) -> Engine:
    """A layout of the user's, which is another one for each number."""
    return layouts.ddp(workload, cell) if number % 2 else layouts.adamw(workload, cell)


def session(settings: Settings, candidates: int, world_size: int) -> None:
    """Check so many candidates against one reference."""
    cell = Cell("bf16", "fp32", sequence="train4", world_size=world_size)
    with closing(Resources()) as resources:
        ranks = resources.ranks(settings)
        for number in range(1, candidates + 1):
            parity = Parity("bench", cell, settings, ranks, resources.traces)
            candidate, reference = (partial(users, number=n) for n in (number, 0))
            parity.check(candidate, reference, workload=workloads.gpt)


def processor_seconds() -> float:
    """Processor seconds of this process and of those that it has waited for."""
    spent = (getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


def measured(settings: Settings, candidates: int, world_size: int) -> tuple[float, float]:
    """Return processor seconds and seconds of one session."""
    before, started = processor_seconds(), time.perf_counter()
    session(settings, candidates, world_size)
    seconds = time.perf_counter() - started
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # its ranks count once it is waited for
    return processor_seconds() - before, seconds


def main() -> None:
    """Print a line for each number of ranks, with and without the promise."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--candidates", type=int, default=10)
    args = parser.parse_args()
    kinds = {"promised": True, "not promised": False}
    print(f"{'ranks':>5}  {'':<14}{'processor':>11}{'elapsed':>10}")
    for world_size in (1, 2):
        figures_by_kind: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
        for _ in range(args.rounds):
            for kind, pure in kinds.items():
                settings = Settings(device="cpu", timeout=120, pure=pure)
                figures_by_kind[kind].append(measured(settings, args.candidates, world_size))
        for kind, figures in figures_by_kind.items():
            spent, seconds = (statistics.median(column) for column in zip(*figures, strict=True))
            print(f"{world_size:>5}  {kind:<14}{spent:>9.1f} s{seconds:>8.1f} s", flush=True)


if __name__ == "__main__":
    main()
