"""Find which of the model's tensors lie in the flat shards of Megatron-core's optimizers."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor, nn

from pytest_precision.engine.groups import updated_tensors
from pytest_precision.formats.transformer_engine.grouped_tensors import is_group, members
from pytest_precision.recipes import expect_release
from pytest_precision.recorders.scripts.located import Locate, PieceFields

TESTED_RELEASES = ("0.16", "0.19")

_PLACES = "model_param_group_index_map"
"""Attribute of the distributed optimizer: each parameter with a shard here to the shard's place."""

_EXPERT = re.compile(
    r"((?:.*\.)?experts\.(?:local_experts\.|\D*\d\.(?:weight|bias)))(\d*)((?:\..*)?)"
)
"""The name of a parameter of experts, of which each rank numbers its own from 0."""


class OwnShard(NamedTuple):
    """The part of a parameter that this rank updates.

    Attributes:
        name: that of the parameter.
        tensor: its master, or the shard of it that the optimizer has.
        start: where it begins in the flattened parameter of this rank.
        stop: where it ends there.
    """

    name: str
    tensor: Tensor
    start: int
    stop: int


def locate(model: nn.Module, optimizer: Any) -> Locate:
    """Return a function that tells the recorder which parameters a Megatron optimizer tensor holds.

    Parameters that tensor parallelism splits are pieces of the whole ones. A single grouped weight
    has the names of the discrete weights in it.

    Raises:
        RuntimeError: the release is another one.
    """
    expect_release("megatron-core", *TESTED_RELEASES)
    named_pieces = pieces_by_name(model)
    parts: dict[Tensor, list[PieceFields]] = {
        parameter: named_pieces[name] for name, parameter in model.named_parameters()
    }
    pieces: dict[Tensor, list[PieceFields]] = {}
    for chained_optimizer in getattr(optimizer, "chained_optimizers", [optimizer]):
        for parameter, shard in _sharded_tensors(chained_optimizer):
            param_range = chained_optimizer._get_model_param_range_map(parameter)["param"]
            pieces[shard] = [*cut_range(parts[parameter], param_range.start, param_range.end)]
    for parameter, parameter_pieces in parts.items():
        master = getattr(parameter, "main_param", None)
        if master is not None:
            pieces.setdefault(master, parameter_pieces)
        if getattr(parameter, "tensor_model_parallel", False):
            pieces[parameter] = parameter_pieces
    return pieces.get


def own_shards(model: nn.Module, optimizer: Any) -> Iterator[OwnShard]:
    """Yield the tensors that Megatron-core's optimizer updates on this rank, with their ranges.

    Of the distributed optimizer, that is nothing where all of this rank's shards are padding.
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    if hasattr(optimizer, _PLACES):
        for parameter, shard in _sharded_tensors(optimizer):
            param_range = optimizer._get_model_param_range_map(parameter)["param"]
            yield OwnShard(names[parameter], shard, param_range.start, param_range.end)
        return
    updated = {id(p) for p in updated_tensors(optimizer)}
    for parameter, name in names.items():
        master = getattr(parameter, "main_param", parameter)
        if parameter.requires_grad and id(master) in updated:
            yield OwnShard(name, master, 0, parameter.numel())


def _sharded_tensors(optimizer: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each parameter with this rank's shard of it in the distributed optimizer."""
    places = getattr(optimizer, _PLACES, {})
    for parameter, (group, order) in places.items():
        yield parameter, optimizer.optimizer.param_groups[group]["params"][order]


def pieces_by_name(model: nn.Module) -> dict[str, list[PieceFields]]:
    """Return, for each parameter of this rank, which of the model's whole tensors it holds.

    Their names are those on one rank: experts have their numbers among those of all ranks.
    """
    named = dict(model.named_parameters())
    config = getattr(model, "config", None)
    gates_first = getattr(config, "gated_linear_unit", False) and not getattr(
        config, "moe_mlp_glu_interleave_size", None
    )
    experts = Counter(
        match[1] + match[3] for name in named if (match := _EXPERT.fullmatch(name)) and match[2]
    )
    strides = {
        # Its weights do not say that each rank has a part of the gates and one of the values.
        name: 2 if gates_first and "linear_fc1" in name and _EXPERT.fullmatch(name) else 1
        for name in named
    }
    return {
        name: [*_pieces_of(name, parameter, experts, strides[name])]
        for name, parameter in named.items()
    }


def _pieces_of(
    name: str, parameter: Any, experts: Mapping[str, int], stride: int
) -> Iterator[PieceFields]:
    """Yield which ranges of which whole tensors of the model lie in a parameter of this rank."""
    expert = _EXPERT.fullmatch(name)
    if is_group(parameter):
        weights = members(parameter)
        first = _expert_rank(parameter) * len(weights)
        for number, part in enumerate(weights, first):
            yield f"{name}{number}", tuple(part.shape), 0, part.numel()
        return
    if expert and expert[2]:
        first = _expert_rank(parameter) * experts[expert[1] + expert[3]]
        name = f"{expert[1]}{first + int(expert[2])}{expert[3]}"
    rank, size = _tensor_parallel(parameter)
    if size == 1:
        yield name, tuple(parameter.shape), 0, parameter.numel()
        return
    dim, stride = parameter.partition_dim, max(stride, parameter.partition_stride)
    whole = [*parameter.shape]
    whole[dim] *= size
    length = math.prod(parameter.shape[dim:]) // stride
    for row in range(math.prod(parameter.shape[:dim])):
        for block in range(stride):  # such as gates and values, each of which is split
            first = ((row * stride + block) * size + rank) * length
            yield name, tuple(whole), first, first + length


def _tensor_parallel(parameter: Any) -> tuple[int, int]:
    """Return this rank's number and the size of the tensor-parallel group of a parameter."""
    if not getattr(parameter, "tensor_model_parallel", False):
        return 0, 1
    from megatron.core import parallel_state

    group = (
        parallel_state.get_tensor_model_parallel_group()
        if getattr(parameter, "allreduce", True)
        else parallel_state.get_expert_tensor_parallel_group()
    )
    return dist.get_rank(group), dist.get_world_size(group)


def _expert_rank(parameter: Any) -> int:
    """Return this rank's number in the expert-parallel group; 0 if all ranks have the experts."""
    if getattr(parameter, "allreduce", True):  # each rank has all of them
        return 0
    from megatron.core import parallel_state

    return int(parallel_state.get_expert_model_parallel_rank())


def cut_range(parts: Sequence[PieceFields], start: int, stop: int) -> Iterator[PieceFields]:
    """Yield the parts between `start` and `stop` of a concatenation of tensor ranges."""
    position = 0
    for name, shape, first, last in parts:
        low, high = max(start, position), min(stop, position + last - first)
        if low < high:
            yield name, shape, first + low - position, first + high - position
        position += last - first
