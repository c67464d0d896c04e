"""Layouts that treat their process as real ones do: they patch, open groups, keep globals and leak.

Each is a plain engine beside that, so that what it computes is known: the same as `layouts.adamw`,
bit for bit, but for what it patches. Which of its ways a layout takes stands in the cell as `way`,
and what it patches as `defect`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import framework
import torch
import torch.distributed as dist
from faulty import FAULTS
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn import functional as F

from pytest_precision import Engine, Workload
from pytest_precision.layouts.compute import compute_in
from pytest_precision.layouts.sharded import FSDP2Engine
from pytest_precision.matrix.cell import Cell


def made(
    kind: type[Engine], workload: Workload, cell: Cell, model: nn.Module, rate: float = 1.0
) -> Engine:
    """Return an engine with AdamW that computes in bf16, its learning rates times `rate`."""
    groups = workload.groups(model)
    for group in groups:
        group["lr"] *= rate
    optimizer = torch.optim.AdamW(groups)
    forward_model = compute_in(model, torch.bfloat16)
    return kind(workload, cell, model, optimizer, forward_model=forward_model)


# --- what patches ---------------------------------------------------------------------------------


class Patch(NamedTuple):
    """A change to an attribute of torch after which training gives other numbers.

    Attributes:
        holder: of the attribute.
        name: of the attribute.
        replacement: for it.
    """

    holder: Any
    name: str
    replacement: Callable[..., Any]


# What a second application would patch must still be torch's own.
_gelu = F.gelu
_forward = nn.Linear.forward
_backward = Tensor.backward
_all_reduce = dist.all_reduce


def tanh_gelu(x: Tensor) -> Tensor:
    return _gelu(x, approximate="tanh")


def scaled_forward(layer: nn.Linear, x: Tensor) -> Tensor:
    return 1.01 * _forward(layer, x)


def scaled_backward(loss: Tensor, *args: Any, **kwargs: Any) -> None:
    _backward(1.01 * loss, *args, **kwargs)


def repeated_all_reduce(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    _all_reduce(tensor.mul_(1.01), *args, **kwargs)


PATCHES = {
    patch.name: patch
    for patch in (
        Patch(F, "gelu", tanh_gelu),
        Patch(nn.Linear, "forward", scaled_forward),
        Patch(Tensor, "backward", scaled_backward),
        Patch(dist, "all_reduce", repeated_all_reduce),
    )
}
"""The patches by the names of what they replace."""


def patching(workload: Workload, cell: Cell) -> Engine:
    """Patch the whole process, and leave it so."""
    patch = PATCHES[cell.defect]
    setattr(patch.holder, patch.name, patch.replacement)
    return made(Engine, workload, cell, workload.model(cell))


class WrongEngine(Engine):
    """Has the defect of a patch by itself: the process is as it was after each phase."""

    def _patched(self) -> AbstractContextManager[object]:
        return mock.patch.object(*PATCHES[self.cell.defect])

    def forward_backward(self, step: int) -> None:
        with self._patched():
            super().forward_backward(step)

    def reduce_grads(self) -> None:
        with self._patched():
            super().reduce_grads()


def wrong(workload: Workload, cell: Cell) -> Engine:
    """Compute what `patching` computes, without touching what others compute with."""
    return made(WrongEngine, workload, cell, workload.model(cell))


# --- what opens process groups --------------------------------------------------------------------


class GroupEngine(Engine):
    """Reduces over process groups of its own, one after the other."""

    groups: Sequence[dist.ProcessGroup]

    def reduce_grads(self) -> None:
        for group in self.groups:
            for _, parameter in self.masters():
                dist.all_reduce(parameter.grad, group=group)


def in_groups(workload: Workload, cell: Cell) -> Engine:
    """Open process groups and reduce over them."""
    ways = {"new groups": _in_new_groups, "mesh": _on_a_mesh, "sharded mesh": _sharded_on_a_mesh}
    return ways[cell.way](workload, cell)


def _in_new_groups(workload: Workload, cell: Cell) -> Engine:
    for rank in range(cell.world_size):
        dist.new_group([rank])
    engine = made(GroupEngine, workload, cell, workload.model(cell))
    engine.groups = [dist.new_group()]
    return engine


def _mesh(cell: Cell) -> DeviceMesh:
    shape = cell.world_size // 2, 2
    return init_device_mesh(cell.device, shape, mesh_dim_names=("replicate", "shard"))


def _on_a_mesh(workload: Workload, cell: Cell) -> Engine:
    """Also multiply as tensor parallelism does, for which torch keeps the mesh in caches."""
    mesh = _mesh(cell)
    ones = distribute_tensor(torch.ones(6, 6), mesh, [Shard(0), Shard(1)])
    product = (ones @ ones.t()).redistribute(mesh, [Replicate(), Replicate()])
    rate = product.to_local().mean().item() / 6  # which is 1
    engine = made(GroupEngine, workload, cell, workload.model(cell), rate)
    engine.groups = mesh.get_all_groups()
    return engine


def _sharded_on_a_mesh(workload: Workload, cell: Cell) -> Engine:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    sharded = fully_shard(workload.model(cell), mesh=_mesh(cell), mp_policy=policy)
    sharded.set_gradient_divide_factor(1.0)
    sharded.set_force_sum_reduction_for_comms(True)
    optimizer = torch.optim.AdamW(workload.groups(sharded))
    return FSDP2Engine(workload, cell, sharded, optimizer)


# --- what keeps globals ---------------------------------------------------------------------------


def on_framework(workload: Workload, cell: Cell) -> Engine:
    """Train with a framework whose globals outlive the engine."""
    model = workload.model(cell)
    if cell.way == "counts":
        number = framework.number_engine("adamw")
        return made(Engine, workload, cell, model, rate=1.0 + number)
    if cell.way == "starts wrong":
        return made(Engine, workload, cell, model, rate=framework.rate_of_engine())
    engine = made(GroupEngine, workload, cell, model)
    engine.groups = [framework.data_parallel_group()]
    return engine


# --- what leaks -----------------------------------------------------------------------------------


class Leak(NamedTuple):
    """A change to the process that a warning must name.

    Attributes:
        act: makes the change.
        word: that must be in the warning.
    """

    act: Callable[[], object]
    word: str


def hook(*args: Any) -> None:
    """Nothing; it is found where it was registered."""


LEAKS = {
    "precision": Leak(
        lambda: torch.set_float32_matmul_precision("medium"), "float32 matmul precision"
    ),
    "variable": Leak(lambda: os.environ.update(PLANTED="yes"), "environment variable PLANTED"),
    "hook": Leak(
        lambda: nn.modules.module.register_module_forward_hook(hook), "hook of all modules"
    ),
    "path": Leak(lambda: sys.path.append("/planted"), "entry of sys.path /planted"),
    "directory": Leak(lambda: os.chdir(Path.cwd().parent), "current directory"),
    "threads": Leak(lambda: torch.set_num_threads(2), "number of threads"),
}
"""The leaks by what they change."""


class LeakingEngine(Engine):
    """Leaves its process changed, but computes as it should."""

    def optimizer_step(self) -> None:
        super().optimizer_step()
        LEAKS[self.cell.way].act()


def leaking(workload: Workload, cell: Cell) -> Engine:
    """Train, then leak."""
    return made(LeakingEngine, workload, cell, workload.model(cell))


# --- what fails -----------------------------------------------------------------------------------


class FailingEngine(Engine):
    """One rank fails where its peers wait for it."""

    def reduce_grads(self) -> None:
        if self.rank == self.cell.culprit:
            FAULTS[self.cell.way].act()
        super().reduce_grads()


def failing(workload: Workload, cell: Cell) -> Engine:
    """Train until one rank does something else."""
    return made(FailingEngine, workload, cell, workload.model(cell))
