"""Process groups that a layout opens end with its run: an engine has no end of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.distributed import distributed_c10d


@contextmanager
def closing_groups() -> Iterator[None]:
    """Destroys the process groups that were opened within, on all ranks at the same time.

    Not after an exception: then a peer may still wait in one of them, and only the end of this
    process frees it.
    """
    before = [*distributed_c10d._world.pg_map]
    yield
    # Also of ranks that are in none of the groups, since they cannot know of the others'.
    dist.barrier()
    for group in [*distributed_c10d._world.pg_map]:
        if group not in before:
            dist.destroy_process_group(group)
