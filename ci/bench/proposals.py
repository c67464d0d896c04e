"""What bounds that a failure proposes let through: `python ci/bench/proposals.py [--rates 0.01]`.

First the failures of layouts that round otherwise in bf16: whether what each proposes is green on
seeds that it was not made from. Then defects of the catalogue, each within the loosest bounds that
were proposed for any of these layouts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "fixtures"))

import defects  # noqa: F401
from catalogue import DEFECTS
from examined import OTHER_SEEDS, ParityIn, bounds_proposed, verdict_of
from variations import rounded_otherwise

from pytest_precision import Cell, Parity, layouts, norm, workloads
from pytest_precision.options import Settings
from pytest_precision.parity.compare.bounds import Norm
from pytest_precision.plugin.resources import Resources

SETTINGS = Settings(device="cpu", timeout=120, lines="off")


def loosest_of_layouts(parity_in: ParityIn, rate: float) -> dict[str, Norm]:
    """Print which seeds are green within what each layout's failure proposes; return the loosest.

    Of the proposals, what is for all tensors of a kind.
    """
    loosest: dict[str, Norm] = {}
    for layout in rounded_otherwise.LAYOUTS:
        started = time.perf_counter()
        sides = (layout, layouts.adamw)
        parity = parity_in(Cell("bf16", "fp32"))
        failure = verdict_of(parity, *sides, workload=partial(workloads.gpt, lr=rate))
        bounds = bounds_proposed(failure) or {}
        outcomes = {
            seed: verdict_of(
                parity,
                *sides,
                workload=partial(workloads.gpt, lr=rate, seed=seed),
                criterion=bounds,
            ).outcome
            for seed in OTHER_SEEDS
        }
        took = time.perf_counter() - started
        print(f"{layout.__name__} at {rate}: {len(bounds)} keys, {outcomes}, {took:.0f} s")
        for kind, bound in bounds.items():
            if isinstance(bound, Norm) and ":" not in kind:
                loosest_bound = loosest.get(kind, bound)
                loosest[kind] = norm(rel=max(bound.rel, loosest_bound.rel))
    return loosest


def main() -> None:
    """Print a line per layout and rate, and one per defect that passes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-2, 1e-3])
    rates = parser.parse_args().rates
    resources = Resources()

    def parity_in(cell: Cell) -> Parity:
        return Parity("test", cell, SETTINGS, resources.ranks(SETTINGS), resources.traces)

    try:
        for rate in rates:
            loosest = loosest_of_layouts(parity_in, rate)
            print({kind: bound.call for kind, bound in loosest.items()}, flush=True)
            outcomes = {
                entry.name: verdict_of(
                    parity_in(entry.cell),
                    entry.layout,
                    entry.against,
                    workload=entry.workload,
                    criterion=loosest,
                ).outcome
                for entry in DEFECTS
            }
            passed = [name for name, outcome in outcomes.items() if outcome == "pass"]
            print(f"{len(passed)} of {len(outcomes)} defects pass: {', '.join(passed)}")
            print(dict(Counter(outcomes.values())), flush=True)
    finally:
        resources.close()


if __name__ == "__main__":
    main()
