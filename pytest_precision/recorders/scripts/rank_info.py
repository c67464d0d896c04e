"""Rank info: which rank of a loop this process is, once the loop has made its process group."""

from __future__ import annotations

import os
from typing import NamedTuple

import torch.distributed as dist

from pytest_precision.errors import expected_but_got

LAUNCHED = ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
"""Variables in which torchrun, and Slurm's srun, say how many processes they have started."""


class RankInfo(NamedTuple):
    """The place of this process among those that train together.

    Attributes:
        rank: its number, from 0.
        world_size: number of processes.
    """

    rank: int
    world_size: int

    @classmethod
    def now(cls) -> RankInfo:
        """Return the place in the process group; a loop without one is alone.

        Raises:
            RuntimeError: a launcher started several processes, which have made no group.
        """
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        launched = {name: os.environ.get(name, "1") for name in LAUNCHED}
        if {*launched.values()} != {"1"}:
            raise RuntimeError(
                expected_but_got(
                    "a process group before the first forward, since a launcher started several "
                    "processes,",
                    f"none and the environment variables {launched}",
                    "call torch.distributed.init_process_group() earlier in the script",
                )
            )
        return cls(0, 1)
