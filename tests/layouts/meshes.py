"""Layouts over meshes of two dimensions, as users write them, in a module that ranks can import."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from pytest_precision import Cell, Engine, Workload, workloads
from pytest_precision.layouts.sharded import FSDP2Engine
from pytest_precision.workloads.batches import Microbatch


class Shared(workloads.mlp):
    """Eight microbatches a step: as many for each of 1, 2 or 4 ranks; widths that 2 divides."""

    def __init__(self) -> None:
        super().__init__(width=32, depth=1)

    def microbatches(self, cell: Cell, step: int) -> list[Microbatch]:
        return [*super().microbatches(cell, step), *super().microbatches(cell, step + 100)][:8]


def sum_over_ranks(model: torch.nn.Module) -> None:
    assert isinstance(model, FSDPModule)
    model.set_gradient_divide_factor(1.0)
    model.set_force_sum_reduction_for_comms(True)


def hsdp(workload: Workload, cell: Cell) -> Engine:
    """Sharded over half of the ranks, replicated on the other half."""
    mesh = init_device_mesh(
        cell.device, (2, cell.world_size // 2), mesh_dim_names=("replicate", "shard")
    )
    model = workload.model(cell)
    fully_shard(model, mesh=mesh)
    sum_over_ranks(model)
    return FSDP2Engine(workload, cell, model, torch.optim.AdamW(workload.groups(model)))


def tensor_parallel(workload: Workload, cell: Cell) -> Engine:
    """FSDP2 over pairs of ranks, between which the matrices of blocks are split by rows."""
    mesh = init_device_mesh(cell.device, (cell.world_size // 2, 2), mesh_dim_names=("dp", "tp"))
    model = workload.model(cell)
    split = ColwiseParallel(output_layouts=Replicate())
    parallelize_module(model, mesh["tp"], {"blocks.*.linear": split})
    fully_shard(model, mesh=mesh["dp"])
    sum_over_ranks(model)
    optimizer = torch.optim.AdamW(workload.groups(model), foreach=False)
    place = mesh["dp"].get_local_rank(), mesh["dp"].size()
    return FSDP2Engine(workload, cell, model, optimizer, data_parallel=place)


class Wide(Shared):
    """More parameters times steps than a trace keeps values of."""

    def __init__(self) -> None:
        workloads.mlp.__init__(self, width=256, depth=2)


class MovesOneShard(FSDP2Engine):
    """A kernel that writes beyond its shard, on one rank: in step 2, one element of a weight."""

    NAME = "blocks.1.linear.weight"

    def update_weights(self) -> None:
        super().update_weights()
        self.updates = getattr(self, "updates", 0) + 1
        if self.updates == 2 and torch.distributed.get_rank() == 1:
            weight = dict(self.model.named_parameters())[self.NAME]
            with torch.no_grad():
                weight.to_local().view(-1)[3] += 0.25


def moved_shard(workload: Workload, cell: Cell) -> Engine:
    """Return `layouts.fsdp2` with that defect."""
    model = workload.model(cell)
    fully_shard(model)
    sum_over_ranks(model)
    return MovesOneShard(workload, cell, model, torch.optim.AdamW(workload.groups(model)))
