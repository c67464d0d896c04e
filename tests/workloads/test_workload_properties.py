"""The built-in workloads hide nothing: one test a property, each refusing what lacks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from workload_measures import CELL
from workload_properties import PROPERTIES
from workload_violators import VIOLATIONS

from pytest_precision import Workload, workloads

BUILT_IN = pytest.mark.parametrize("make", [workloads.mlp, workloads.gpt, workloads.moe])
Property = Callable[[Workload], Iterator[str]]


@BUILT_IN
@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda p: p.__name__)
def test_built_in_workload_has(holds: Property, make: type[Workload]) -> None:
    """A built-in workload has every property."""
    assert list(holds(make())) == []


@pytest.mark.parametrize(("holds", "violator"), VIOLATIONS, ids=lambda p: p.__name__)
def test_property_refuses(holds: Property, violator: type[Workload]) -> None:
    """A workload that lacks a property is told so."""
    assert list(holds(violator()))


def test_every_property_has_a_violator() -> None:
    """No property is believed that was never seen refusing anything."""
    assert {holds for holds, _ in VIOLATIONS} == set(PROPERTIES)


@BUILT_IN
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_ranks_cover_all_microbatches(make: type[Workload], world_size: int) -> None:
    """Ranks that take every n-th microbatch, or n in a row, have equally many, and all of them."""
    workload = make()
    cell = CELL.replace(world_size=world_size)
    tokens = [workload.tokens(m) for m in workload.microbatches(cell, 1)]
    share, remainder = divmod(len(tokens), world_size)
    dealt = [tokens[rank::world_size] for rank in range(world_size)]
    in_a_row = [tokens[rank * share : (rank + 1) * share] for rank in range(world_size)]
    assert remainder == 0
    for ranks in (dealt, in_a_row):
        assert sorted(t for rank in ranks for t in rank) == sorted(tokens)


def test_there_is_no_end_of_microbatches() -> None:
    """However many ranks there are; more of them than numbers of tokens cannot all differ."""
    workload = workloads.mlp()
    microbatches = workload.microbatches(CELL.replace(world_size=64), 1)
    tokens = [workload.tokens(microbatch) for microbatch in microbatches]
    assert len(tokens) == 192
    assert all(len(set(tokens[n : n + 24])) == 24 for n in range(len(tokens) - 23))
