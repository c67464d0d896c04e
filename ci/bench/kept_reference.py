"""What it costs to know what was read: `python ci/bench/kept_reference.py [--rounds N]`.

Everything is a share of one check whose reference is kept, on one warm rank: that the files of a
group are compared, which is done before each job and before a reference is used again, that modules
are held against how they were, and that a rank says at the end of a job what it has read. The hook
that hears it runs at each event of the interpreter, of which a check has some two hundred.
"""

from __future__ import annotations

import argparse
import statistics
import time
import timeit
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

from pytest_precision import Engine, Workload, layouts, workloads
from pytest_precision.check.parity import Parity
from pytest_precision.matrix.cell import Cell
from pytest_precision.options import Settings
from pytest_precision.ranks import RankPool
from pytest_precision.ranks.files import reads
from pytest_precision.ranks.files.sources import Sources
from pytest_precision.ranks.needs import Needs
from pytest_precision.ranks.state.definitions import Definitions
from pytest_precision.trace.cache import TraceCache

LIMIT = 0.1
"""Most of a check that all of it may take."""


def users(workload: Workload, cell: Cell) -> Engine:
    """A layout of the user's, whose module is a file that is compared."""
    return layouts.ddp(workload, cell)


def said_by_a_rank() -> float:
    """Seconds in which a rank says what it has read."""
    return seconds(reads.reads_of_process().seen)


def seconds(function: Callable[[], Any]) -> float:
    """Return the median time of a call."""
    return statistics.median(timeit.repeat(function, number=1, repeat=21))


def price_of_id() -> float:
    """Nanoseconds of an event of the interpreter."""
    return min(timeit.repeat(partial(id, None), number=100_000, repeat=5)) * 1e4


def main() -> None:
    """Print what each part takes of a check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    definitions = Definitions()
    cell = Cell(sequence="train4")
    with closing(RankPool()) as ranks, closing(TraceCache()) as traces:
        parity = Parity("bench", cell, Settings(), ranks, traces, definitions=definitions)
        checks = []
        for _ in range(rounds + 2):
            began = time.perf_counter()
            parity.check(users, layouts.adamw, workload=workloads.gpt)
            checks.append(time.perf_counter() - began)
        check = statistics.median(checks[2:])
        sources = Sources()
        (said,) = ranks.run(1, said_by_a_rank, needs=Needs(), sources=sources)
        (heard,) = ranks.run(1, price_of_id, needs=Needs())
    parts = {
        f"{len(sources.digests)} files compared": 3 * seconds(sources.unchanged),
        "modules compared": seconds(definitions.replaced),
        "said by a rank": said,
    }
    print(f"a check takes {1e3 * check:.0f} ms")
    for name, taken in parts.items():
        print(f"{name:<22}{1e3 * taken:>8.2f} ms  ratio {taken / check:.4f}")
    share = sum(parts.values()) / check
    print(f"{'all':<32}  ratio {share:.4f}  limit {LIMIT} {'MISSED' if share > LIMIT else ''}")
    print(f"id() takes {heard:.0f} ns on a rank and {price_of_id():.0f} ns without the hook")


if __name__ == "__main__":
    main()
