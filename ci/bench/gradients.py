"""What it costs to compute gradients once more: `python ci/bench/gradients.py [RANKS]`.

Processor time of checks that have it over those of checks that turn it off, per workload and
precision, on one rank in this process; of two ranks or more, that of all processes of a session.
"""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from pytest_precision import Cell, Engine, Workload, layouts, unchecked, workloads
from pytest_precision.check.parity import Parity
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources

SEQUENCE = "train4-eval-train2-save-load-train2"
TIMES = 5
"""Checks of each kind, one of each by turns; the fastest counts, or on more ranks their sum."""

OFF = {"grad": unchecked(reason="to see what it costs")}
PRECISIONS = ("fp32", "bf16", "mxfp8", "nvfp4")
WORKLOADS: dict[str, Callable[..., Workload]] = {
    "mlp": workloads.mlp,
    "gpt": workloads.gpt,
    "moe": workloads.moe,
}


def numbered(workload: Workload, cell: Cell, *, number: int) -> Engine:
    """The same layout, under a name that no recording is kept of."""
    return layouts.adamw(workload, cell)


def seconds(cell: Cell, workload: Any, **terms: Any) -> float:
    """Return the processor time of one check, of both sides' recordings."""
    settings = Settings(device="cpu", ranks="inline", lines="off")
    resources = Resources()
    sides = (partial(numbered, number=number) for number in (1, 2))
    try:
        gc.collect()
        started = time.process_time()
        parity = Parity("bench", cell, settings, resources.ranks(settings), resources.traces)
        parity.check(*sides, workload=workload, **terms)
        return time.process_time() - started
    finally:
        resources.close()


def of_session(cell: Cell, workload: Any, checks: int, **terms: Any) -> float:
    """Return the processor time of all processes of a session with some checks."""
    settings, resources = Settings(device="cpu", lines="off"), Resources()
    started = time.process_time() + of_children()
    for number in range(checks):
        sides = (partial(numbered, number=2 * number + one) for one in (0, 1))
        parity = Parity("bench", cell, settings, resources.ranks(settings), resources.traces)
        parity.check(*sides, workload=workload, **terms)
    resources.close()
    return time.process_time() + of_children() - started


def of_children() -> float:
    """Return the processor time of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def ratio(cell: Cell, workload: Any) -> float:
    """Return how many times the processor time of a check a check with it takes."""
    if cell.world_size == 1:
        pairs = [
            (seconds(cell, workload), seconds(cell, workload, oracle=OFF)) for _ in range(TIMES)
        ]
        return min(one for one, _ in pairs) / min(other for _, other in pairs)
    both = []
    for terms in ({}, {"oracle": OFF}):
        start = of_session(cell, workload, 1, **terms)
        both.append(of_session(cell, workload, 1 + TIMES, **terms) - start)
    return both[0] / both[1]


def main() -> None:
    """Print a table."""
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    for name, workload in WORKLOADS.items():
        for precision in PRECISIONS:
            primary = "fp32" if precision == "fp32" else "bf16"
            cell = Cell(precision, primary, sequence=SEQUENCE, world_size=ranks)
            print(f"{name:4} {precision:6} {ratio(cell, workload):.2f}", flush=True)


if __name__ == "__main__":
    main()
