"""Compute parts of large tensors on all threads of a rank.

Torch lets other threads run while it computes, and a rank's own number of threads stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
import torch.distributed as dist

from pytest_precision.trace.digests import threads_of_rank

SmallPart = TypeVar("SmallPart")
OfPart = TypeVar("OfPart")

FEWEST = 4
"""Parts below which starting threads takes longer than they save."""


def computed(
    function: Callable[[SmallPart], OfPart], parts: Sequence[SmallPart], device: torch.device
) -> list[OfPart]:
    """Return what a function returns for each part, in their order; it is called without autograd.

    Args:
        function: may be called on several threads at once.
        parts: of tensors, each of a size that stays in the cache of a core.
        device: where it computes. A GPU is asked by this thread alone: another one would have a
            stream of its own, and several parts at once would take several times the memory.
    """

    def without_autograd(part: SmallPart) -> OfPart:
        with torch.no_grad():  # a thread has a mode of its own
            return function(part)

    threads = threads_of_rank(dist.get_world_size() if dist.is_initialized() else 1)
    if device.type != "cpu" or threads == 1 or len(parts) < FEWEST:
        return [*map(without_autograd, parts)]
    with ThreadPoolExecutor(threads) as pool:
        return [*pool.map(without_autograd, parts)]
