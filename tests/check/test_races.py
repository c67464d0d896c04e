"""Races: a candidate has the same bits whichever rank is late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import planted_races
import pytest

from pytest_precision import Cell, Parity, ParityError, layouts, workloads
from pytest_precision.probes.races.late_ranks import can_race

ParityIn = Callable[[Cell], Parity]

GPT = partial(workloads.gpt, heads=3, depth=1)
CELL = Cell(sequence="train2", world_size=2)
REDUCED, GATHERED = "overlap_grad_reduce", "overlap_param_gather"

at_night = partial(pytest.param, marks=pytest.mark.nightly)
"""Leaves to the nightly run the other kind of overlap, of which the other test has run one."""


def check(parity: Parity, candidate: Callable[..., object], jitter: int) -> None:
    parity.settings = replace(parity.settings, jitter=jitter)
    parity.check(candidate, layouts.adamw, workload=GPT)


@pytest.mark.parametrize("overlap", [at_night(REDUCED), GATHERED])
def test_a_race_of_overlapped_communication_is_found(parity_in: ParityIn, overlap: str) -> None:
    """At the latest by the last of five runs; a busy machine may show it in the first already."""
    shown = r"race: .* with rank [01] late|not repeatable|rank 1 and|differs at step"
    with pytest.raises(ParityError, match=shown):
        check(parity_in(CELL), partial(planted_races.reads_early, overlap=overlap), 5)


@pytest.mark.parametrize("overlap", [REDUCED, at_night(GATHERED)])
def test_a_layout_that_waits_has_the_same_bits(parity_in: ParityIn, overlap: str) -> None:
    """Lateness alone is no defect, and leaves nothing behind on the ranks."""
    candidate = partial(layouts.distributed_optimizer, **{overlap: True})
    parity = parity_in(CELL)
    check(parity, candidate, 2)
    check(parity, candidate, 2)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (Cell(), False),
        (Cell(device="cuda"), True),
        (Cell(world_size=2), True),
        (Cell(sequence="train2-save-load@2-train2"), True),
    ],
)
def test_one_rank_races_on_a_device_alone(cell: Cell, expected: bool) -> None:
    """Its streams may be late; one rank of a CPU has nothing to wait for."""
    assert can_race(cell) is expected
