"""What it costs that ranks serve one layout alone: `python ci/bench/keying.py [--rounds N]`.

A matrix is run with ranks as they are kept, and with ranks that all layouts share, in turns and
each in a session of its own, so that the start of its ranks is part of it. Sharing is a switch of
this benchmark alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import combinations
from unittest import mock

from measure import interleave, ratio

from pytest_precision import layouts, workloads
from pytest_precision.check.parity import Parity
from pytest_precision.check.side import Side
from pytest_precision.engine.engine import Engine
from pytest_precision.matrix.cell import Cell
from pytest_precision.options import Settings
from pytest_precision.plugin.session import Resources
from pytest_precision.workloads import Workload

SETTINGS = Settings(device="cpu", timeout=120)

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


@contextmanager
def shared() -> Iterator[None]:
    """Has all runs share their ranks."""
    of = Side.of

    def sharing(*args: object) -> Side:
        run = of(*args)
        return replace(run, needs=replace(run.needs, code=()))

    with mock.patch.object(Side, "of", sharing):
        yield


def session(checks: Sequence[Check]) -> None:
    """One session with all of these checks."""
    resources = Resources()
    try:
        ranks = resources.ranks(SETTINGS)
        for candidate, reference, cell in checks:
            parity = Parity("bench", cell, SETTINGS, ranks, resources.traces)
            parity.check(candidate, reference, workload=workloads.gpt)
    finally:
        resources.close()


def in_shared(checks: Sequence[Check]) -> None:
    """The same with shared ranks."""
    with shared():
        session(checks)


def main() -> None:
    """Print a line a matrix."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(f"{'matrix':<28}{'cells':>6}{'keyed':>9}{'shared':>9}{'ratio':>7}  limit")
    for name, checks in matrices().items():
        functions = {"keyed": partial(session, checks), "shared": partial(in_shared, checks)}
        seconds = interleave(functions, rounds, alone=False)
        keyed, other = (sorted(seconds[kind])[rounds // 2] for kind in functions)
        found = ratio(seconds, "keyed", "shared")
        missed = "MISSED" if found > LIMITS[name] else ""
        figures = f"{len(checks):>6}{keyed:>7.1f} s{other:>7.1f} s{found:>7.2f}"
        print(f"{name:<28}{figures}  {LIMITS[name]} {missed}", flush=True)


if __name__ == "__main__":
    main()
