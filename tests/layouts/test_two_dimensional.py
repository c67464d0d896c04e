"""Meshes of two dimensions, as users write them: their process groups end with each job of kept
ranks, and the next job opens its own.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from pytest_precision import Cell, Engine, Parity, Workload, workloads
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


@pytest.mark.parametrize(
    ("layout", "world_size"),
    [
        (tensor_parallel, 2),
        # In CI, a mesh has two dimensions on two ranks, too.
        pytest.param(hsdp, 2, marks=pytest.mark.nightly),
        pytest.param(hsdp, 4, marks=pytest.mark.nightly),
        pytest.param(tensor_parallel, 4, marks=pytest.mark.nightly),
    ],
)
def test_every_job_of_kept_ranks_can_open_the_same_mesh(
    parity_in: Callable[[Cell], Parity], layout: Callable[..., Engine], world_size: int
) -> None:
    """Two jobs on the same ranks, and two equal meshes in the one that loads a checkpoint."""
    cell = Cell("fp32", sequence="train1-save-load-skip-train1-eval", world_size=world_size)
    verdict = parity_in(cell).check(
        layout, layout, workload=Shared, reference_cell=cell.replace(sequence="train2-eval")
    )
    assert verdict.outcome == "pass"
