"""A training framework in miniature: what it was told once, it keeps in globals of its module."""

from __future__ import annotations

import torch.distributed as dist

ENGINES: list[str] = []
"""Names of the engines made so far: a plain container, which grows in place."""

_ARGUMENTS: dict[str, float] | None = None
_GROUP: dist.ProcessGroup | None = None


def number_engine(name: str) -> int:
    """Return how many engines were made before this one."""
    ENGINES.append(name)
    return len(ENGINES) - 1


def rate_of_engine() -> float:
    """Return the factor of the learning rate: a wrong one, until the arguments are known."""
    global _ARGUMENTS
    if _ARGUMENTS is None:
        _ARGUMENTS = {"rate": 1.0}
        return 1.5
    return _ARGUMENTS["rate"]


def data_parallel_group() -> dist.ProcessGroup:
    """Return the group that all engines reduce over, opened for the first of them."""
    global _GROUP
    if _GROUP is None:
        _GROUP = dist.new_group()
    return _GROUP
