"""How often `noise()` flags noise itself: `python ci/bench/noise.py [--runs 10]`.

Each further run of a reference is held, as if it were a candidate, to the bounds that the five runs
after it give. What is flagged then is a false alarm.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import torch

from pytest_precision import layouts, workloads
from pytest_precision.check.side import Side
from pytest_precision.matrix.cell import Cell
from pytest_precision.options import Settings
from pytest_precision.parity.compare.noise import LARGEST_NOISE, NoiseMeter, error_of
from pytest_precision.parity.compare.pairs import align
from pytest_precision.plugin.resources import Resources
from pytest_precision.ranks.code.import_path import ImportPath
from pytest_precision.recorders.variant import Variant
from pytest_precision.trace.moment import EVERYTHING
from pytest_precision.trace.reader import Trace

SETTINGS = Settings(device="cpu", timeout=300)

RUNS = 5
"""Runs that give the bounds; the default of `noise()`."""

SAFETIES = (2, 4, 6, 8)


def recorded(resources: Resources, side: Side, folder: Path, number: int) -> Trace:
    """Record one run of a side with the noise of that number."""
    place = folder / str(number)
    place.mkdir()
    resources.ranks(SETTINGS).run(
        side.cell.world_size,
        Side.record,
        side.varied(Variant(noise=number)),
        str(place),
        EVERYTHING,
    )
    return Trace(place, side.cell.world_size)


Tensors = dict[tuple[Any, str, str, int | None], tuple[float, list[float]]]


def errors(reference: Trace, runs: list[Trace], unit: float) -> Tensors:
    """Return, of each tensor of a kind that noise reaches, its floor and its error in each run."""
    tensors: Tensors = {}
    floors = NoiseMeter(reference, runs, unit)
    for run in runs:
        for moment in reference.moments:
            for pair in align(run, reference, (moment, moment)):
                key = moment, pair.kind, pair.name, pair.rank
                if key not in tensors:
                    tensors[key] = floors.bound(pair, moment, 0.0), []
                tensors[key][1].append(error_of(pair))
    reached = {key[:2] for key, (_, run_errors) in tensors.items() if any(run_errors)}
    return {key: run_errors for key, run_errors in tensors.items() if key[:2] in reached}


def alarms(tensors: Tensors, runs: int, safety: float) -> list[Counter[str]]:
    """Return, for each run, how many tensors of each kind are flagged."""
    flagged: list[Counter[str]] = [Counter() for _ in range(runs)]
    for (_, kind, _, _), (floor, run_errors) in tensors.items():
        for run in range(runs):
            others = [run_errors[(run + after) % runs] for after in range(1, RUNS + 1)]
            if run_errors[run] > min(max(safety * max(others), floor), LARGEST_NOISE):
                flagged[run][kind] += 1
    return flagged


def main() -> None:
    """Print a line per workload and precision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    runs = parser.parse_args().runs
    resources = Resources()
    print(f"alarms among tensors, and runs with any of {runs}, at safety {SAFETIES}")
    try:
        for workload, precision in product(("mlp", "gpt", "moe"), ("fp32", "bf16")):
            paths = ImportPath.of(layouts.adamw), ImportPath.of(getattr(workloads, workload))
            side = Side(paths[0], None, paths[1], Cell(precision, "fp32"))
            with tempfile.TemporaryDirectory() as folder:
                traces = [recorded(resources, side, Path(folder), n) for n in range(runs + 1)]
                unit = torch.finfo({"fp32": torch.float32, "bf16": torch.bfloat16}[precision]).eps
                tensors = errors(traces[0], traces[1:], unit)
            counts = [alarms(tensors, runs, safety) for safety in SAFETIES]
            words = "  ".join(
                f"{sum(map(Counter.total, t))} in {sum(map(bool, t))}" for t in counts
            )
            kinds = sum(counts[SAFETIES.index(6)], Counter[str]())
            print(f"{workload} {precision}: {len(tensors) * runs} tensors  {words}", flush=True)
            print(f"    at 6: {dict(kinds)}", flush=True)
    finally:
        resources.close()


if __name__ == "__main__":
    main()
