"""What the plugin costs a session: its start, and thousands of cells beside plain parameters.

    python ci/bench/sessions.py [--cells 10000] [--rounds 5]

Seconds are those of the processor, of whole sessions of pytest in a folder of their own: an empty
test with the plugin and without it, and a test of so many cells, which does nothing, beside one to
which `pytest.mark.parametrize` gives the same values. Of each are said medians over the rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PRECISIONS, RANKS = ("fp32", "bf16", "fp16", "mxfp8"), tuple(range(1, 11))

EMPTY = "def test_empty(): pass\n"

QUIETLY = ("-q", "-p", "no:cacheprovider", "-c", os.devnull)

STARTED, CELLS = 10.0, 1.3
"""Aims: milliseconds of a start, and the ratio of cells to plain parameters."""


def matrix(sequences: int) -> str:
    """Return a test with so many cells for each precision and number of ranks."""
    axes = f"precision={PRECISIONS}, world_size={RANKS}, sequence={values(sequences)}"
    mark = f"@pytest.mark.precision_matrix({axes})"
    return f"import pytest\n{mark}\ndef test_cells(precision_cell): pass\n"


def plain(sequences: int) -> str:
    """Return a test with the same values, as pytest alone has them."""
    marks = "".join(
        f"@pytest.mark.parametrize({name!r}, {numbers})\n"
        for name, numbers in (("c", RANKS), ("b", values(sequences)), ("a", PRECISIONS))
    )
    return f"import pytest\n{marks}def test_plain(a, b, c): pass\n"


def values(sequences: int) -> list[str]:
    """Return the sequences of train steps."""
    return [f"train{steps}" for steps in range(1, sequences + 1)]


def cost(content: str, *options: str) -> float:
    """Return the seconds of processor of a session that runs one test file."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_bench.py").write_text(content)
        before = os.times()
        subprocess.run(
            [sys.executable, "-m", "pytest", *QUIETLY, f"--rootdir={folder}", *options, folder],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


def main() -> None:
    """Print a line for the start, and one for the cells."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    sequences = args.cells // (len(PRECISIONS) * len(RANKS))
    sessions = {
        "with": (EMPTY,),
        "without": (EMPTY, "-p", "no:precision"),
        "cells": (matrix(sequences), "--precision-matrix"),
        "plain": (plain(sequences),),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(args.rounds):
        for name, session in sessions.items():
            seconds[name].append(cost(*session))
    median = {name: statistics.median(costs) for name, costs in seconds.items()}
    start = 1e3 * (median["with"] - median["without"])
    missed = " MISSED" * (start > STARTED)
    print(f"start: {1e3 * median['without']:.0f} ms without, {start:.0f} ms more with{missed}")
    ratio = median["cells"] / median["plain"]
    missed = " MISSED" * (ratio > CELLS)
    print(f"{args.cells} cells: {ratio:.2f} times plain parameters{missed}")


if __name__ == "__main__":
    main()
