"""Flat shards: which logical tensors lie in what Megatron-core's optimizers update."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from pytest_precision.errors import expected_but_got
from pytest_precision.recipes.release import expect_release
from pytest_precision.recorders.scripts.located import Locate, PieceFields
from pytest_precision.te.groups import is_group, members

TESTED_RELEASES = ("0.16", "0.19")

_PLACES = "model_param_group_index_map"
"""Attribute of the distributed optimizer: each parameter with a shard here to the shard's place."""


def locate(model: nn.Module, optimizer: Any) -> Locate:
    """Return the `locate` of what `get_megatron_optimizer` has made for `model`, unwrapped.

    Parameters that tensor parallelism splits are pieces of the whole ones. A single grouped weight
    has the names of the discrete weights in it.

    Raises:
        RuntimeError: the release is another one.
        ValueError: a parameter is split with a stride.
    """
    expect_release("megatron-core", *TESTED_RELEASES)
    parts: dict[Tensor, list[PieceFields]] = {
        own: [*pieces_of(name, own)] for name, own in model.named_parameters()
    }
    pieces: dict[Tensor, list[PieceFields]] = {}
    for one in getattr(optimizer, "chained_optimizers", [optimizer]):
        for parameter, shard in _sharded(one):
            held = one._get_model_param_range_map(parameter)["param"]
            pieces[shard] = [*_cut(parts[parameter], held.start, held.end)]
    for parameter, own in parts.items():
        master = getattr(parameter, "main_param", None)
        if master is not None:
            pieces.setdefault(master, own)
        if getattr(parameter, "tensor_model_parallel", False):
            pieces[parameter] = own
    return pieces.get


def named_masters(model: nn.Module, optimizer: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the name of each parameter that an optimizer updates, with its master or shard.

    Of the distributed optimizer, that is nothing where all of this rank's shards are padding.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    distributed = hasattr(optimizer, _PLACES)
    shards = dict(_sharded(optimizer))
    for parameter, name in names.items():
        if distributed:
            if parameter in shards:
                yield name, shards[parameter]
        elif parameter.requires_grad:
            yield name, getattr(parameter, "main_param", parameter)


def _sharded(optimizer: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the parameters of which the distributed optimizer has a shard here, with the shard."""
    places = getattr(optimizer, _PLACES, {})
    for parameter, (group, order) in places.items():
        yield parameter, optimizer.optimizer.param_groups[group]["params"][order]


def pieces_of(name: str, parameter: Any) -> Iterator[PieceFields]:
    """Yield the pieces that a parameter consists of: the whole, ranges of it, or group members."""
    if is_group(parameter):
        for number, part in enumerate(members(parameter)):
            yield f"{name}{number}", tuple(part.shape), 0, part.numel()
        return
    rank, size = _tensor_parallel(parameter)
    if size == 1:
        yield name, tuple(parameter.shape), 0, parameter.numel()
        return
    if parameter.partition_stride != 1:
        given = f"{name} with partition_stride={parameter.partition_stride}"
        raise ValueError(expected_but_got("tensor parallelism without strides", given))
    dim = parameter.partition_dim
    whole = [*parameter.shape]
    whole[dim] *= size
    length = math.prod(parameter.shape[dim:])
    for row in range(math.prod(parameter.shape[:dim])):
        first = (row * size + rank) * length
        yield name, tuple(whole), first, first + length


def _tensor_parallel(parameter: Any) -> tuple[int, int]:
    """Return rank and size of the ranks that share a parameter."""
    if not getattr(parameter, "tensor_model_parallel", False):
        return 0, 1
    from megatron.core import parallel_state

    group = parallel_state.get_tensor_model_parallel_group()
    return dist.get_rank(group), dist.get_world_size(group)


def _cut(parts: list[PieceFields], start: int, stop: int) -> Iterator[PieceFields]:
    """Yield what lies from `start` to before `stop` of ranges in a row."""
    position = 0
    for name, shape, first, last in parts:
        low, high = max(start, position), min(stop, position + last - first)
        if low < high:
            yield name, shape, first + low - position, first + high - position
        position += last - first
