"""Destroy process groups that a job opened and did not close, before the next job.

A group is ended only if nothing refers to it any more. A group that a framework keeps in a global
variable stays for the framework's next use. So does the group of a mesh in a cache that is unknown
here, since an equal, later mesh finds the entry of that cache and thereby the group.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from pytest_precision._torch.distributed import forget_meshes, process_groups
from pytest_precision.ranks.state import accelerator


def close_unused() -> None:
    """Destroy process groups of earlier calls that nothing refers to; all ranks must take part.

    Call it between two jobs, when no rank can be waiting in one of these groups.
    """
    world = process_groups()
    opened = torch.tensor(len(world.pg_map) - 1)
    # All ranks take part, since a rank in none of the groups cannot know of them.
    dist.all_reduce(opened, dist.ReduceOp.MAX)
    if not opened.item():
        return
    forget_meshes()
    gc.collect()  # engines and their hooks form reference cycles
    ending = [*_unheld_groups(world)]
    for group in ending:
        if dist.get_rank(group) == 0:
            _delete_keys(world.pg_map[group][1])
    # An abort waits for what is still queued on the device, and peers may have queued less.
    accelerator.wait_for_device()
    # A name may be used again; no rank may write keys under it before the old ones are deleted.
    dist.barrier()
    while ending:
        dist.destroy_process_group(ending.pop())


def _unheld_groups(world: Any) -> Iterator[Any]:
    """Yield process groups, except the default one, to which no object outside torch refers."""
    tables = (
        world.pg_map,
        world.pg_names,
        world.pg_group_ranks,
        world.pg_backend_config,
        world.pg_to_tag,
        world.pg_coalesce_state,
        *world.tags_to_pg.values(),
    )
    groups = [object(), *(group for group in world.pg_map if group is not world.default_pg)]
    of_here, *counts = map(sys.getrefcount, groups)
    for group, count in zip(groups[1:], counts, strict=True):
        if count == of_here + sum(group in table for table in tables):
            yield group


def _delete_keys(store: Any) -> None:
    """Delete a group's keys from its store, if this release of torch can list them."""
    if hasattr(store, "list_keys"):
        for key in store.list_keys():
            store.delete_key(key)
