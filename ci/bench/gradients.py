"""What it costs to compute gradients once more: `python ci/bench/gradients.py [RANKS]`.

Processor time of checks that have it over those of checks that turn it off, and their time by the
clock, per workload and precision. All take turns in one session with the same ranks, and references
that are kept. A figure is the ratio of the least times of all rounds, since what else the machine
does can only add to a time. The candidate gives the same bits as the reference: in the same cell,
where no gradient is computed once more for it, and in another cell, where all are, as for a
candidate that gives other bits.
"""

from __future__ import annotations

import argparse
import contextlib
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

OF_REFERENCE = "of_reference"
"""Name of an axis on which nothing depends."""

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
    used = processor_time()
    began = time.perf_counter()
    parity.check(twin, layouts.adamw, workload=workload, **terms)
    return processor_time() - used, time.perf_counter() - began


def ratios(cell: Cell, workload: Any, rounds: int) -> list[float]:
    """Return how many times as long a check takes with it, by the least times of all rounds.

    In processor time and by the clock: in the reference's cell, and then in another one.
    """
    resources = Resources()
    other = cell.replace(**{OF_REFERENCE: 1})
    without: list[tuple[float, float]] = []
    each: tuple[list[tuple[float, float]], ...] = ([], [])
    try:
        for there in (cell, other):  # starts the ranks, and records the references
            taken(resources, cell, workload, reference_cell=there)
        for _ in range(rounds):
            without.append(taken(resources, cell, workload, oracle=OFF))
            for found, there in zip(each, (cell, other), strict=True):
                found.append(taken(resources, cell, workload, reference_cell=there))
    finally:
        resources.close()
    least = [min(figures) for figures in zip(*without, strict=True)]
    return [
        min(figures) / off
        for found in each
        for figures, off in zip(zip(*found, strict=True), least, strict=True)
    ]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", type=int, nargs="?", default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--workload", nargs="+", choices=[*WORKLOADS], default=[*WORKLOADS])
    given = parser.parse_args()
    print("                  same cell       another cell")
    print("              processor  clock  processor  clock")
    for name in given.workload:
        for precision in given.precision:
            primary = "fp32" if precision == "fp32" else "bf16"
            axes = ((OF_REFERENCE, 0),)
            cell = Cell(precision, primary, False, SEQUENCE, given.ranks, axes)
            found = ratios(cell, WORKLOADS[name], given.rounds)
            figures = "".join(
                f"{used:11.2f} {clock:6.2f}"
                for used, clock in zip(found[::2], found[1::2], strict=True)
            )
            print(f"{name:4} {precision:6}{figures}", flush=True)


if __name__ == "__main__":
    main()
