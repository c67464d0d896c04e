"""How fast cells are collected, beside plain parametrized tests, and what the plugin costs.

    python ci/bench/collection.py [--rounds 7] [--start-rounds 40]

Every run is a process of its own, which loads no plugin but the one that is measured; the runs take
turns. Times are of the processor, since other jobs come and go; ratios are medians over the rounds.
A figure that misses its target is marked.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import entry_points
from itertools import product
from math import prod
from pathlib import Path
from typing import NamedTuple

import measure

import pytest_precision
from pytest_precision.matrix.selection import pairwise

CELLS = 10_000

AXES = """
    precision=["fp32", "bf16", "mxfp8", "nvfp4", "fp8_block"],
    primary_weight=["fp32", "bf16"],
    grad_accum_fusion=[False, True],
    sequence=["train4", "train2-eval-train2", "train2-save-load-train2", "train-save-swap"],
    world_size=[1, 2, 3, 4, 5],
    glu_interleave=[0, 8, 16, 32, 64],
    block=[16, 32, 64, 128, 256],
"""

SUITES = {
    "plain": f"""
import pytest

@pytest.mark.parametrize("number", range({CELLS}))
def test_plain(number):
    pass
""",
    "matrix": f"""
import pytest

@pytest.mark.precision_matrix({AXES})
def test_matrix(cell):
    pass
""",
    "one": "def test_one():\n    pass\n",
}

WITHOUT: list[str] = []

WITH = [
    "-p",
    "precision"
    if entry_points(group="pytest11", name="precision")
    else "pytest_precision.plugin.hooks",
]

COLLECTION = 1.5
START = 5
BYTES = 5_000
PAIRWISE = 0.5
"""Targets: ratio to plain tests, milliseconds, bytes a test, seconds."""

SHAPES = ((10, 10, 10, 10), (100, 100), (2,) * 13, (6,) * 5, (8, 4, 2, 10, 3, 5))
"""Matrices of up to 10,000 cells, by the number of values of their axes."""


class Usage(NamedTuple):
    """What a process used: processor seconds, and memory at its peak in bytes."""

    seconds: float
    memory: int


def collect(folder: Path, suite: str, plugins: list[str]) -> Usage:
    """Collect one suite.

    Raises:
        subprocess.CalledProcessError: where pytest fails.
    """
    command = [sys.executable, "-m", "pytest", *plugins, "--collect-only", "-qq", f"{suite}.py"]
    # As installed: modules come as byte code, whatever the calling environment thinks of it.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    environment["PYTHONPATH"] = str(Path(pytest_precision.__file__).parents[1])
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise subprocess.CalledProcessError(os.waitstatus_to_exitcode(status), command)
    return Usage(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


Samples = dict[str, list[Usage]]
"""Run to one figure a round."""


def in_turns(folder: Path, runs: dict[str, tuple[str, list[str]]], rounds: int) -> Samples:
    """Use of each run, one figure a round; one more round before them is not counted."""
    samples: Samples = {name: [] for name in runs}
    for turn in range(-1, rounds):
        for name in list(runs)[:: 1 if turn % 2 else -1]:
            usage = collect(folder, *runs[name])
            if turn >= 0:
                samples[name].append(usage)
    return samples


def row(name: str, figure: str, target: str = "", missed: bool = False) -> None:
    """Print one row of the table."""
    print(f"{name:<44} {figure:>8} {target:>8}  {'MISSED' if missed else ''}", flush=True)


def collection(folder: Path, rounds: int) -> None:
    """Print time and memory of collecting the cells."""
    runs = {
        "plain": ("plain", WITHOUT),
        "plain, with the plugin": ("plain", WITH),
        "matrix": ("matrix", WITH),
    }
    samples = in_turns(folder, runs, rounds)
    seconds = {name: [usage.seconds for usage in usages] for name, usages in samples.items()}
    ratio = measure.ratio(seconds, "matrix", "plain")
    row("matrix, ratio to plain", f"{ratio:.2f}", f"<= {COLLECTION}", ratio > COLLECTION)
    ratio = measure.ratio(seconds, "plain, with the plugin", "plain")
    row("plain with the plugin, ratio to plain", f"{ratio:.2f}")
    memory_of_one = collect(folder, "one", WITH).memory
    for name, usages in samples.items():
        row(f"{name}, seconds", f"{statistics.median(seconds[name]):.2f}")
        size = (statistics.median(usage.memory for usage in usages) - memory_of_one) / CELLS
        row(f"{name}, bytes a test", f"{size:.0f}", f"<= {BYTES}", size > BYTES)


def start(folder: Path, rounds: int) -> None:
    """Print the time that the plugin adds to a run of one test."""
    samples = in_turns(folder, {"with": ("one", WITH), "without": ("one", WITHOUT)}, rounds)
    # A few milliseconds of some hundred: the least of many runs is what other jobs left alone.
    least = {name: min(usage.seconds for usage in usages) for name, usages in samples.items()}
    added = 1e3 * (least["with"] - least["without"])
    row("start, added milliseconds", f"{added:.1f}", f"<= {START}", added > START)


def coverage() -> None:
    """Print time and size of the pairwise coverage; no choice can be smaller than the bound."""
    for shape in SHAPES:
        rows = list(product(*map(range, shape)))
        began = time.process_time()
        chosen = len(pairwise(rows))
        seconds = time.process_time() - began
        bound = prod(sorted(shape)[-2:])
        name = f"pairwise, {chosen} of {len(rows)} (bound {bound}), seconds"
        row(name, f"{seconds:.2f}", f"<= {PAIRWISE}", seconds > PAIRWISE)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", default=7, type=int, help="rounds of the collection")
    parser.add_argument("--start-rounds", default=40, type=int, help="rounds of the start")
    options = parser.parse_args()
    print(f"{CELLS} tests or cells, pytest --collect-only")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for suite, source in SUITES.items():
            (folder / f"{suite}.py").write_text(source)
        collection(folder, options.rounds)
        start(folder, options.start_rounds)
    coverage()


if __name__ == "__main__":
    main()
