"""What the sessions of this folder run on their ranks beside the faults."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def process() -> int:
    return os.getpid()


def sum_of_ranks() -> int:
    """Of the numbers from 1: no rank is missing."""
    import torch
    import torch.distributed as dist

    total = torch.tensor([dist.get_rank() + 1])
    dist.all_reduce(total)
    return int(total.item())


def fail() -> None:
    """Rank 1 fails, and rank 0 waits for it."""
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 1:
        raise KeyError("planted")
    dist.all_reduce(torch.ones(1))


def fail_once(folder: str) -> None:
    """Fails in its first run."""
    import torch.distributed as dist

    if dist.get_rank() == 1:
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.join(folder, "failed"))
            raise KeyError("planted")
    dist.barrier()


def busy(folder: str) -> None:
    """Rank 0 loops, rank 1 is stopped; they leave their numbers, and that of the fork server."""
    rank = int(os.environ["RANK"])
    Path(folder, f"rank{rank}").write_text(f"{os.getpid()} {os.getppid()}")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        pass
