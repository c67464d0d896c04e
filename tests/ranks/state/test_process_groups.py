"""Process groups that a job opens end before the next one, whoever closes them or does not."""

from __future__ import annotations

import os
import sys
import warnings
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from pytest_precision import Cell, RankError, layouts, workloads
from pytest_precision.check.side import Side
from pytest_precision.ranks import ImportPath

JOBS = 12
GROWTH_MB = 1.0
"""A twentieth of what so many groups of a job's own would take, and more than allocators keep."""


def train_on_a_mesh():
    """Two axes, so that torch opens groups for them."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2))
    weight = distribute_tensor(torch.ones(6, 6), mesh, [Shard(0), Shard(1)])
    whole = (weight @ weight.t()).redistribute(mesh, [Replicate(), Replicate()])
    return whole.to_local().sum().item()


def held():
    """What a rank has open, and how much memory it takes."""
    import torch.distributed as dist

    # The store of the group of all ranks, where each group keeps its addresses.
    store = dist.distributed_c10d._get_default_store()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    opened = {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        # Torch 2.9 cannot list them, and keeps them.
        "keys": sorted(store.list_keys()) if hasattr(store, "list_keys") else [],
        "process": os.getpid(),
    }
    return opened, pages * 4 / 1024


def sum_in_a_group_of_these_ranks_alone():
    """Without the other ranks, so that its name comes from its ranks and not from a counter."""
    import torch
    import torch.distributed as dist

    group = dist.new_group([0, 1], use_local_synchronization=True)
    total = torch.ones(1)
    if dist.get_rank() < 2:
        dist.all_reduce(total, group=group)
    return total.item()


def sum_in_a_group_that_is_kept():
    """As frameworks do: in a registry of their own, filled by the first who asks."""
    import torch
    import torch.distributed as dist

    framework = sys.modules.setdefault("framework", ModuleType("framework"))
    registry = vars(framework).setdefault("registry", {})
    if "dp" not in registry:
        registry["dp"] = dist.new_group()
    total = torch.ones(1)
    dist.all_reduce(total, group=registry["dp"])
    return total.item(), registry["dp"].group_name


def leave_the_group_of_all_ranks():
    import torch.distributed as dist

    dist.destroy_process_group()


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


def size_of_a_group_as_torch_2_14_makes_it():
    """It says of each group of gloo whether it can be made anew, and most cannot."""
    from datetime import timedelta

    import torch.distributed as dist

    made = dist.distributed_c10d.ProcessGroupGloo(
        dist.HashStore(), 0, 1, timeout=timedelta(seconds=9), enable_reconfigure=False
    )
    return made.size()


def recorded(ranks, layout, folder):
    path, workload = ImportPath.of(layout), ImportPath.of(partial(workloads.mlp))
    run = Side.of(path, path, workload, Cell(sequence="train1", world_size=2))
    return ranks.run(2, Side.record, run, str(folder), None)


# On four ranks a mesh has groups that a rank is not in, as those of a layout below have.
@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_meshes_leave_nothing_open(pool, world_size):
    """No socket, no thread and no key of a store, and not ever more memory."""
    pool.run(world_size, train_on_a_mesh)
    [before, memory], *_ = pool.run(world_size, held)
    for _ in range(JOBS):
        assert pool.run(world_size, train_on_a_mesh) == [216] * world_size
    [after, grown], *_ = pool.run(world_size, held)
    assert after == before
    assert grown - memory < GROWTH_MB


def test_groups_of_a_layout_end_with_its_run(pool, tmp_path):
    """On ranks that are in them and on ranks that are not, and that is no leak."""
    before = [opened for opened, _ in pool.run(2, held)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(recorded(pool, with_groups, tmp_path))
    assert [opened for opened, _ in pool.run(2, held)] == before


def test_a_group_may_be_asked_for_with_what_later_releases_add(pool):
    """Ranks make groups of gloo in torch's place, for which each release of torch calls them."""
    assert pool.run(1, size_of_a_group_as_torch_2_14_makes_it) == [1]


def test_a_name_can_come_again(pool):
    """No rank reads the addresses that a group of that name had in an earlier job."""
    for _ in range(3):
        assert pool.run(3, sum_in_a_group_of_these_ranks_alone) == [2, 2, 1]


def test_a_group_that_a_framework_keeps_stays(pool):
    """For its next job; nobody else could close it without the framework's knowing."""
    first = pool.run(2, sum_in_a_group_that_is_kept)
    assert pool.run(2, sum_in_a_group_that_is_kept) == first
    assert first[0][0] == 2


def test_ranks_that_left_their_group_get_no_other_job(pool):
    """The next job would find no group at all."""
    with pytest.warns(UserWarning, match="group of all ranks was True, is False"):
        pool.run(2, leave_the_group_of_all_ranks)
    assert pool.run(2, sum_in_a_group_of_these_ranks_alone) == [2, 2]


def test_a_failure_in_a_group_is_named(pool, tmp_path):
    """Nobody waits for its end where a rank has failed."""
    with pytest.raises(RankError, match="raised KeyError: 'planted'"):
        recorded(pool, fails_in_a_group, tmp_path)
