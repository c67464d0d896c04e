"""Megatron-core: DDP, the distributed optimizer, tensor parallelism; its CUDA calls on a CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pytest_precision.errors import expected_but_got
from pytest_precision.loops.locate import Locate, PieceFields
from pytest_precision.recipes.release import expect_release

TESTED = "0.16"


def locate(model: nn.Module, optimizer: Any) -> Locate:
    """Return the `locate` of what `get_megatron_optimizer` has made for `model`, unwrapped.

    Parameters that tensor parallelism splits are pieces of the whole ones.

    Raises:
        RuntimeError: the release is another one.
        ValueError: a parameter is split with a stride.
    """
    expect_release("megatron-core", TESTED)
    parts = {own: [*_parts(name, own)] for name, own in model.named_parameters()}
    pieces: dict[Tensor, list[PieceFields]] = {}
    for one in getattr(optimizer, "chained_optimizers", [optimizer]):
        for parameter, (group, order) in getattr(one, "model_param_group_index_map", {}).items():
            held = one._get_model_param_range_map(parameter)["param"]
            shard = one.optimizer.param_groups[group]["params"][order]
            pieces[shard] = [*_cut(parts[parameter], held.start, held.end)]
    for parameter, own in parts.items():
        master = getattr(parameter, "main_param", None)
        if master is not None:
            pieces.setdefault(master, own)
        if getattr(parameter, "tensor_model_parallel", False):
            pieces[parameter] = own
    return pieces.get


def _parts(name: str, parameter: Any) -> Iterator[PieceFields]:
    """Yield what lies in a parameter: the whole, or each range that tensor parallelism left it."""
    if not getattr(parameter, "tensor_model_parallel", False):
        yield name, tuple(parameter.shape), 0, parameter.numel()
        return
    from megatron.core import parallel_state

    if parameter.partition_stride != 1:
        given = f"{name} with partition_stride={parameter.partition_stride}"
        raise ValueError(expected_but_got("tensor parallelism without strides", given))
    group = parallel_state.get_tensor_model_parallel_group()
    rank, size, dim = dist.get_rank(group), dist.get_world_size(group), parameter.partition_dim
    whole = [*parameter.shape]
    whole[dim] *= size
    length = math.prod(parameter.shape[dim:])
    for row in range(math.prod(parameter.shape[:dim])):
        first = (row * size + rank) * length
        yield name, tuple(whole), first, first + length


def _cut(parts: list[PieceFields], start: int, stop: int) -> Iterator[PieceFields]:
    """Yield what lies from `start` to before `stop` of ranges in a row."""
    position = 0
    for name, shape, first, last in parts:
        low, high = max(start, position), min(stop, position + last - first)
        if low < high:
            yield name, shape, first + low - position, first + high - position
        position += last - first


class _OnCpu(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if func is Tensor.cuda:
            return args[0]
        result = func(*args, **kwargs)
        names_type = func is Tensor.type and len(args) == 1
        return result.replace("torch.", "torch.cuda.") if names_type else result


@contextmanager
def on_cpu() -> Iterator[None]:
    """Let the CUDA calls of Megatron-core mean the CPU."""
    current = patch("torch.cuda.current_device", lambda: torch.device("cpu"))
    with _OnCpu(), current, patch("torch.cuda.synchronize", lambda *_: None):
        yield
