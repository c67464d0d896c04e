"""Patches that make process groups over gloo where a program asks for NCCL, without a GPU.

Collectives on lists of tensors of unequal sizes, which NCCL takes and gloo refuses, become one
broadcast or reduction per rank.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

MAKERS = ("init_process_group", "new_group")
"""The functions that make process groups and are told a backend."""

OF_NCCL = ("pg_options", "device_id")
"""Arguments that only NCCL takes: its options, and the GPU that a group is bound to."""


def enter() -> None:
    """Patch `torch.distributed` in this process so that NCCL groups use gloo."""
    functions = {name: _over_gloo(getattr(distributed_c10d, name)) for name in MAKERS}
    functions["all_gather"] = _gathering_unevenly(dist.all_gather)
    functions["reduce_scatter"] = _scattering_unevenly(dist.reduce_scatter)
    for name, function in functions.items():
        for holder in (dist, distributed_c10d):
            setattr(holder, name, function)


def _gathering_unevenly(gather: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(gather)
    @torch.no_grad()
    def all_gather(
        tensor_list: list[Tensor], tensor: Tensor, group: Any = None, async_op: bool = False
    ) -> Any:
        if async_op or _is_even(tensor_list):
            return gather(tensor_list, tensor, group, async_op)
        for rank, part in enumerate(tensor_list):
            if rank == dist.get_rank(group):
                part.copy_(tensor)
            if part.numel():
                dist.broadcast(part, group=group, group_src=rank)
        return None

    return all_gather


def _scattering_unevenly(scatter: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(scatter)
    @torch.no_grad()
    def reduce_scatter(
        output: Tensor,
        input_list: list[Tensor],
        op: Any = dist.ReduceOp.SUM,
        group: Any = None,
        async_op: bool = False,
    ) -> Any:
        if async_op or _is_even(input_list):
            return scatter(output, input_list, op, group, async_op)
        for rank, part in enumerate(input_list):
            reduced = part.clone()  # which gloo also writes to on other ranks
            if reduced.numel():
                dist.reduce(reduced, op=op, group=group, group_dst=rank)
            if rank == dist.get_rank(group):
                output.copy_(reduced)
        return None

    return reduce_scatter


def _is_even(tensors: list[Tensor]) -> bool:
    return len({tensor.shape for tensor in tensors}) <= 1


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
