"""What a cell costs beyond the training that it checks: `python ci/bench/cells.py [--rounds N]`.

The same four steps of the same layout on the same ranks: as bare training, recorded, and as a whole
check with its reference recorded before.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from measure import interleave, ratio

from pytest_precision import layouts, workloads
from pytest_precision.check.parity import Parity
from pytest_precision.check.side import Side
from pytest_precision.matrix.cell import Cell
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources
from pytest_precision.ranks.code.import_path import ImportPath

SETTINGS = Settings(device="cpu", timeout=120)


def bare(layout: ImportPath, workload: ImportPath, cell: Cell) -> None:
    """Train without looking: the job that the other two are measured against."""
    from pytest_precision.engine.engine import STEP_PHASES

    engine = layout.resolve()(workload.resolve()(), cell)
    for step in range(1, 1 + cell.operations.count("train")):
        engine.forward_backward(step)
        for phase in STEP_PHASES[1:]:
            getattr(engine, phase)()


def measures(
    resources: Resources, layout: str, workload: str, world_size: int
) -> dict[str, Callable[[], object]]:
    """Bare training, its recording, and a check, each as a function without arguments."""
    cell = Cell(world_size=world_size)
    ranks = resources.ranks(SETTINGS)
    paths = ImportPath.of(getattr(layouts, layout)), ImportPath.of(getattr(workloads, workload))
    run = Side(paths[0], None, paths[1], cell)
    parity = Parity("bench", cell, SETTINGS, ranks, resources.traces)

    def recorded() -> None:
        with tempfile.TemporaryDirectory() as folder:
            ranks.run(world_size, Side.record, run, str(Path(folder)), None)

    def check() -> None:
        parity.check(getattr(layouts, layout), layouts.adamw, workload=getattr(workloads, workload))

    return {
        "bare": lambda: ranks.run(world_size, bare, *paths, cell),
        "recorded": recorded,
        "check": check,
    }


def main() -> None:
    """Print a line a layout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    print("4 steps in fp32           bare training   recorded     check   checks a second")
    resources = Resources()
    try:
        for layout, workload, world_size in (
            ("ddp", "mlp", 1),
            ("ddp", "mlp", 2),
            ("fsdp2", "mlp", 2),
            ("ddp", "gpt", 2),
            ("fsdp2", "gpt", 2),
        ):
            functions = measures(resources, layout, workload, world_size)
            seconds = interleave(functions, rounds, alone=False)
            median = {name: statistics.median(taken) for name, taken in seconds.items()}
            print(
                f"{layout:6} {workload} on {world_size} ranks  {1000 * median['bare']:10.0f} ms"
                f"  {ratio(seconds, 'recorded', 'bare'):8.2f} x"
                f"  {ratio(seconds, 'check', 'bare'):7.2f} x  {1 / median['check']:15.1f}"
            )
    finally:
        resources.close()


if __name__ == "__main__":
    main()
