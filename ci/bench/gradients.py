"""What it costs to compute gradients once more: `python ci/bench/gradients.py [RANKS]`.

Processor time of checks that have it over those of checks that turn it off, and their time by the
clock, per workload and precision. The two take turns in one session with the same ranks, and the
figure is the median over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import psutil

from pytest_precision import Cell, Engine, Workload, layouts, unchecked, workloads
from pytest_precision.check.parity import Parity
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources

SEQUENCE = "train4-eval-train2-save-load-train2"

SETTINGS = Settings(device="cpu", lines="off", timeout=300)

OFF = {"grad": unchecked(reason="to see what it costs")}
PRECISIONS = ("fp32", "bf16", "mxfp8", "nvfp4")
WORKLOADS: dict[str, Callable[..., Workload]] = {
    "mlp": workloads.mlp,
    "gpt": workloads.gpt,
    "moe": workloads.moe,
}


def twin(workload: Workload, cell: Cell) -> Engine:
    """The same layout under another name."""
    return layouts.adamw(workload, cell)


def processor_time() -> float:
    """Return the seconds that this process and all that it has started have computed."""
    seconds = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            seconds += times.user + times.system
    return time.process_time() + seconds


def taken(resources: Resources, cell: Cell, workload: Any, **terms: Any) -> tuple[float, float]:
    """Return the processor time of one check with its candidate's recording, and by the clock."""
    parity = Parity("bench", cell, SETTINGS, resources.ranks(SETTINGS), resources.traces)
    used, began = processor_time(), time.perf_counter()
    parity.check(twin, layouts.adamw, workload=workload, **terms)
    return processor_time() - used, time.perf_counter() - began


def ratios(cell: Cell, workload: Any, rounds: int) -> tuple[float, float]:
    """Return the medians of how many times as long a check takes with it, in both times."""
    resources, found = Resources(), []
    try:
        taken(resources, cell, workload)  # starts the ranks, and records the reference
        for _ in range(rounds):
            with_it = taken(resources, cell, workload)
            without = taken(resources, cell, workload, oracle=OFF)
            found.append([on / off for on, off in zip(with_it, without, strict=True)])
    finally:
        resources.close()
    processor, clock = map(statistics.median, zip(*found, strict=True))
    return processor, clock


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", type=int, nargs="?", default=1)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    print("              processor  clock")
    for name, workload in WORKLOADS.items():
        for precision in PRECISIONS:
            primary = "fp32" if precision == "fp32" else "bf16"
            cell = Cell(precision, primary, sequence=SEQUENCE, world_size=given.ranks)
            processor, clock = ratios(cell, workload, given.rounds)
            print(f"{name:4} {precision:6} {processor:11.2f} {clock:6.2f}", flush=True)


if __name__ == "__main__":
    main()
