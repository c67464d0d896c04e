"""A check that does not pass keeps the last lines that the ranks of both sides have printed."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from examined import verdict_of

from pytest_precision import Cell, Engine, Parity, Workload, layouts, workloads
from pytest_precision.check.ruled_check import PRINTED_LINES


def talkative(workload: Workload, cell: Cell) -> Engine:
    """A layout whose ranks print more lines than a report has, and then their number."""
    for line in range(PRINTED_LINES):
        print("line", line)
    print("rank", dist.get_rank())
    return layouts.adamw(workload, cell)


def twice(workload: Workload, cell: Cell) -> Engine:
    """A layout that prints nothing, and trains with twice the rate that its workload declares."""
    engine = layouts.adamw(workload, cell)
    engine.optimizer.param_groups[0]["lr"] *= 2
    return engine


def test_lines_of_both_sides(parity_in: Callable[[Cell], Parity]) -> None:
    """Of each rank that printed any; a check that passes has none."""
    parity = parity_in(Cell(sequence="train2", world_size=2))
    assert parity.check(talkative, layouts.adamw, workload=workloads.mlp).output is None
    verdict = verdict_of(parity, talkative, twice, workload=workloads.mlp)
    assert [(kept["side"], kept["rank"]) for kept in verdict.output] == [
        ("candidate", 0),
        ("candidate", 1),
    ]
    for rank, kept in enumerate(verdict.output):
        assert kept["lines"] == [
            *(f"line {line}" for line in range(1, PRINTED_LINES)),
            f"rank {rank}",
        ]
