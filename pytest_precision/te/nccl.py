"""NCCL: process groups that ask for it are made over gloo while the CPU stands in for a GPU."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

MAKERS = ("init_process_group", "new_group")
"""The functions that make process groups and are told a backend."""

OF_NCCL = ("pg_options", "device_id")
"""Arguments that only NCCL takes: its options, and the GPU that a group is bound to."""


def enter() -> None:
    """Patch `torch.distributed` in this process: what asks for NCCL gets gloo."""
    for name in MAKERS:
        made = _over_gloo(getattr(distributed_c10d, name))
        for holder in (dist, distributed_c10d):
            setattr(holder, name, made)


def _over_gloo(make: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(make)

    @functools.wraps(make)
    def make_over_gloo(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        if "nccl" in str(bound.arguments.get("backend")).lower():
            bound.arguments["backend"] = "gloo"
        for name in OF_NCCL:
            bound.arguments.pop(name, None)
        return make(*bound.args, **bound.kwargs)

    return make_over_gloo
