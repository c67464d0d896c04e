"""Process groups that a job opened end before the next one: neither meshes nor layouts close any.

A group ends only where nothing refers to it any more. One that a framework keeps in a global of its
own stays, for the framework's next use of it; and so does one of a mesh in a cache that is not
known here, since a later mesh that is equal finds that cache's entry, and with it the group.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from pytest_precision import _torch


def close() -> None:
    """End the groups that earlier jobs opened and that nothing holds; a collective of all ranks.

    Between two jobs, when no rank can be waiting in one of them any more.
    """
    world = _torch.process_groups()
    opened = torch.tensor(len(world.pg_map) - 1)
    # Also with ranks that are in none of the groups, since they cannot know of the others'.
    dist.all_reduce(opened, dist.ReduceOp.MAX)
    if not opened.item():
        return
    _torch.forget_meshes()
    gc.collect()  # engines are in cycles with their hooks
    ending = [*_unheld(world)]
    for group in ending:
        if dist.get_rank(group) == 0:
            _delete_keys(world.pg_map[group][1])
    # A name may come again, and nobody may write keys under it before the old ones are deleted.
    dist.barrier()
    while ending:
        dist.destroy_process_group(ending.pop())


def _unheld(world: Any) -> Iterator[Any]:
    """The groups, but for the default one, that only torch's own tables refer to."""
    tables = (
        world.pg_map,
        world.pg_names,
        world.pg_group_ranks,
        world.pg_backend_config,
        world.pg_to_tag,
        world.pg_coalesce_state,
        *world.tags_to_pg.values(),
    )
    seen = [object(), *(group for group in world.pg_map if group is not world.default_pg)]
    of_here, *counts = map(sys.getrefcount, seen)
    for group, count in zip(seen[1:], counts, strict=True):
        if count == of_here + sum(group in table for table in tables):
            yield group


def _delete_keys(store: Any) -> None:
    """Delete what the ranks of a group have told each other, where this torch can list it."""
    if hasattr(store, "list_keys"):
        for key in store.list_keys():
            store.delete_key(key)
