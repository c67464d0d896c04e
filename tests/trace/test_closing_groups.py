"""What a layout opens for its collectives does not outlive its run."""

from __future__ import annotations

import warnings
from functools import partial

import pytest

from pytest_precision import Cell, layouts, workloads
from pytest_precision.ranks import ImportPath, RankError, RankPool
from pytest_precision.run import Run


def with_groups(workload, cell):
    """Opens a group of some ranks, which another rank is not in, and one of all."""
    import torch
    import torch.distributed as dist

    some, everybody = dist.new_group([0]), dist.new_group()
    dist.all_reduce(torch.ones(1), group=everybody)
    assert (some == dist.GroupMember.NON_GROUP_MEMBER) == (dist.get_rank() > 0)
    return layouts.ddp(workload, cell)


def fails_in_a_group(workload, cell):
    import torch
    import torch.distributed as dist

    group = dist.new_group()
    if dist.get_rank() == 1:
        raise KeyError("planted")
    dist.all_reduce(torch.ones(1), group=group)


@pytest.fixture(scope="module")
def ranks():
    ranks = RankPool(timeout=60)
    yield ranks
    ranks.close()


def recorded(ranks: RankPool, layout, folder) -> list[int]:
    path, workload = ImportPath.of(layout), ImportPath.of(partial(workloads.mlp))
    run = Run.of(path, path, workload, Cell(sequence="train1", world_size=2))
    return ranks.run(2, Run.record, run, str(folder), None)


def test_groups_of_a_layout_end_with_its_run(ranks, tmp_path):
    """On ranks that are in them and on ranks that are not: the processes are as they were."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(recorded(ranks, with_groups, tmp_path))


def test_a_failure_in_a_group_is_named(ranks, tmp_path):
    """Nobody waits for its end where a rank has failed."""
    with pytest.raises(RankError, match="raised KeyError: 'planted'"):
        recorded(ranks, fails_in_a_group, tmp_path)
