"""What real Transformer Engine costs on the CPU: `python ci/bench/te_cells.py [--rounds N]`.

The recording of a cell with its own layers, against the same cell with the emulated ones, on ranks
that are there already, in processor time, which other work on the machine does not move; and what
its import adds to the start of a rank.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from measure import interleave

from pytest_precision import layouts, workloads
from pytest_precision.check.side import Side
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.declared import Declared
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources
from pytest_precision.ranks.code.import_path import ImportPath
from pytest_precision.ranks.needs import Needs

DEPENDENCIES = ("onnxscript", "pydantic", "einops")
"""What Transformer Engine imports, and a fork server can import once for all ranks."""

PRECISIONS = ("bf16", "fp8_delayed", "fp8_current", "fp8_block", "mxfp8", "nvfp4")

LINEARS = partial(workloads.mlp, width=256, depth=2)
EXPERTS = partial(workloads.moe, experts=4, depth=2, width=64, hidden=128)
BLOCKS = partial(workloads.gpt, heads=2, head_width=32, depth=2, fixed_temperature=True)
SIDES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "te_linears": (partial(layouts.te_linears, masters_in_optimizer=True), LINEARS),
    "te_experts": (partial(layouts.te_experts, masters_in_optimizer=True), EXPERTS),
    "te_blocks": (partial(layouts.te_blocks, masters_in_optimizer=True), BLOCKS),
}


def processor_seconds(side: Side, folder: str) -> float:
    """Record a side on a rank; return how long its process computed."""
    began = time.process_time()
    side.record(folder, None)
    return time.process_time() - began


def recording(
    resources: Resources, layout: Callable[..., Any], workload: Callable[..., Any], cell: Cell
) -> Callable[[], float]:
    """Return a function that records a side on ranks that are kept, and returns the seconds."""
    settings = Settings(device="cpu", timeout=300)
    ranks, path = resources.ranks(settings), ImportPath.of(layout)
    side = Side(path, None, ImportPath.of(workload), cell)
    needs = Needs.of(path, Declared.of(layout))

    def run() -> float:
        with tempfile.TemporaryDirectory() as folder:
            (seconds,) = ranks.run(1, processor_seconds, side, folder, needs=needs)
        return float(seconds)

    return run


@layouts.fresh_ranks
def plain_rank() -> None:
    """Start a rank."""


@layouts.fresh_ranks
@layouts.uses_transformer_engine
def engine_rank() -> None:
    """Start a rank that imports Transformer Engine."""
    import transformer_engine.pytorch  # noqa: F401


def started(preload: tuple[str, ...], rounds: int) -> float:
    """Return how many seconds the import adds to the start of a rank."""
    resources = Resources()
    ranks = resources.ranks(Settings(device="cpu", timeout=300, preload=preload))

    def run(function: Callable[[], None]) -> None:
        path = ImportPath.of(function, "function")
        ranks.run(1, path, needs=Needs.of(path, Declared.of(function)))

    functions = {"with": partial(run, engine_rank), "without": partial(run, plain_rank)}
    try:
        taken = interleave(functions, rounds, alone=False)
    finally:
        resources.close()
    return statistics.median(a - b for a, b in zip(taken["with"], taken["without"], strict=True))


def main() -> None:
    """Print a line a precision, and one on the start."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--precision", nargs="+", default=PRECISIONS)
    options = parser.parse_args()
    rounds = options.rounds
    print("recording 4 steps, real over emulated   " + "   ".join(SIDES))
    resources = Resources()
    try:
        for precision in options.precision:
            figures = []
            for real, workload in SIDES.values():
                cell = Cell(precision, "bf16")
                functions = {
                    "real": recording(resources, real, workload, cell),
                    "emulated": recording(resources, layouts.fused_adam, workload, cell),
                }
                for run in functions.values():
                    run()  # imports and caches are made
                taken = [functions["real"]() / functions["emulated"]() for _ in range(rounds)]
                figures.append(statistics.median(taken))
            print(f"{precision:38}" + "".join(f"{figure:11.2f} x" for figure in figures))
    finally:
        resources.close()
    print(f"its import on each new rank  {started((), rounds):.2f} s")
    of = ", ".join(DEPENDENCIES)
    print(f"with {of} preloaded  {started(DEPENDENCIES, rounds):.2f} s")


if __name__ == "__main__":
    main()
