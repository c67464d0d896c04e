"""What it costs that ranks serve one layout alone: `python ci/bench/keying.py [--rounds N]`.

A matrix is run with ranks as they are kept, and with ranks that all layouts share, in turns and
each in a session of its own, so that the start of its ranks is part of it. Sharing is a switch of
this benchmark alone. Kept ranks cost memory too, of which the pool has an estimate.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from measure import interleave, ratio

from pytest_precision import layouts, workloads
from pytest_precision.check.parity import Parity
from pytest_precision.engine.engine import Engine
from pytest_precision.matrix.cell import Cell
from pytest_precision.options import Settings
from pytest_precision.ranks.needs import Needs
from pytest_precision.ranks.pool import RankPool
from pytest_precision.trace.cache import TraceCache
from pytest_precision.workloads import Workload

SETTINGS = Settings(device="cpu", timeout=120, pure=True)

CELLS = [
    Cell("bf16", "fp32", sequence=sequence, world_size=world_size)
    for sequence in ("train4", "train2-eval-train2", "train2-save-load-train2", "train3-skip-train")
    for world_size in (1, 2)
]

LIMITS = {"one against a built-in one": 1.2, "ten against each other": 1.5}

Check = tuple[Callable[..., Engine], Callable[..., Engine], Cell]


def users(workload: Workload, cell: Cell, number: int) -> Engine:
    """A layout of the user's, which is another one for each number."""
    return layouts.ddp(workload, cell) if number % 2 else layouts.adamw(workload, cell)


def matrices() -> dict[str, list[Check]]:
    """The checks of each matrix, test by test."""
    ten = [partial(users, number=number) for number in range(10)]
    return {
        "one against a built-in one": [(ten[1], layouts.adamw, cell) for cell in CELLS],
        "ten against each other": [(*pair, c) for pair in combinations(ten, 2) for c in CELLS[:2]],
    }


class SharedRanks(RankPool):
    """Has all jobs share their ranks."""

    def run(self, *args: Any, needs: Needs | None = None, **kwargs: Any) -> list[Any]:
        """Run a job wherever it may."""
        return super().run(*args, needs=needs and replace(needs, code=()), **kwargs)


def own_bytes(process: BaseProcess) -> int:
    """Memory of another process that it shares with none."""
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def session(pool: type[RankPool], checks: Sequence[Check]) -> int:
    """Run one session with all of these checks, and return the most memory of a rank at its end."""
    ranks = pool("reuse", SETTINGS.timeout, SETTINGS.device)
    traces = TraceCache()
    try:
        for candidate, reference, cell in checks:
            parity = Parity("bench", cell, SETTINGS, ranks, traces)
            parity.check(candidate, reference, workload=workloads.gpt)
        return max(map(own_bytes, active_children()))
    finally:
        ranks.close()
        traces.close()


def main() -> None:
    """Print a line a matrix, and what memory a rank takes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(f"{'matrix':<28}{'cells':>6}{'keyed':>9}{'shared':>9}{'ratio':>7}  limit")
    for name, checks in matrices().items():
        pools = {"keyed": RankPool, "shared": SharedRanks}
        functions = {kind: partial(session, pool, checks) for kind, pool in pools.items()}
        seconds = interleave(functions, rounds, alone=False)
        keyed, other = (sorted(seconds[kind])[rounds // 2] for kind in functions)
        keyed_ratio = ratio(seconds, "keyed", "shared")
        missed = "MISSED" if keyed_ratio > LIMITS[name] else ""
        figures = f"{len(checks):>6}{keyed:>7.1f} s{other:>7.1f} s{keyed_ratio:>7.2f}"
        print(f"{name:<28}{figures}  {LIMITS[name]} {missed}", flush=True)
    most = session(RankPool, checks[:2])
    print(f"a rank that waits has up to {most >> 20} MiB that it shares with no other process")


if __name__ == "__main__":
    main()
