"""Layouts that shard weights, gradients and optimizer state over the ranks: FSDP2.

FSDP2 is imported where it is used, on ranks: it takes half as long as torch itself, and a session
that names these layouts imports this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from pytest_precision.engine.engine import Engine
from pytest_precision.errors import expect_one_of
from pytest_precision.layouts.dtypes import DTYPE_OF_NAME, resident
from pytest_precision.layouts.support import ON_PARAMETERS, supports
from pytest_precision.matrix.cell import Cell
from pytest_precision.workloads.base import Workload

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy


class FSDP2Engine(Engine):
    """Training by `fully_shard`, which reduces and scatters gradients inside backward."""

    unobservable: ClassVar = {"grad": "fully_shard reduces gradients inside backward"}
    needs_even_shares: ClassVar = True

    def microbatch_context(self, *, last: bool) -> AbstractContextManager[Any]:
        """Return an empty context; make FSDP2 reduce gradients only in the `last` backward."""
        from torch.distributed.fsdp import FSDPModule

        assert isinstance(self.model, FSDPModule)
        self.model.set_requires_gradient_sync(last)
        return nullcontext()

    def reduce_grads(self) -> None:
        """Do nothing: FSDP2 has already reduced inside backward."""

    def evaluate(self) -> None:
        """Evaluate, then reshard the root, which a forward without backward leaves gathered."""
        super().evaluate()
        for module in _sharded_modules(self.model):
            module.reshard()


@supports(ON_PARAMETERS)
def fsdp2(
    workload: Workload,
    cell: Cell,
    *,
    reduce_dtype: str = "fp32",
    output_dtype: str | None = None,
) -> Engine:
    """Apply `fully_shard` to every block and the root, and set up AdamW on the shards.

    Args:
        workload: a model whose `blocks`, if it has any, are sharded one by one.
        cell: `primary_weight` is the storage dtype of the shards, `precision` the dtype in which
            they are gathered and computed with.
        reduce_dtype: dtype of the reduce-scatter and of the accumulation over microbatches.
        output_dtype: dtype that the root casts its floating outputs to; they are left as computed
            unless given.

    Raises:
        ValueError: for a dtype that this layout does not know.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy

    model, compute = resident(workload.model(cell), cell)
    inner = MixedPrecisionPolicy(
        param_dtype=compute, reduce_dtype=_dtype("reduce_dtype", reduce_dtype)
    )
    outer = inner
    if output_dtype is not None:  # of the root only: a block's output is the next block's input
        outer = replace(inner, output_dtype=_dtype("output_dtype", output_dtype))
    shard(model, init_device_mesh(cell.device, (cell.world_size,)), inner, outer)
    return FSDP2Engine(workload, cell, model, torch.optim.AdamW(workload.groups(model)))


def shard(
    model: nn.Module, mesh: DeviceMesh, inner: MixedPrecisionPolicy, outer: MixedPrecisionPolicy
) -> None:
    """Apply `fully_shard` to every block and the model, with gradients summed over ranks.

    Args:
        model: a model whose `blocks`, if it has any, are sharded one by one.
        mesh: the ranks.
        inner: policy of the blocks.
        outer: policy of the model itself.
    """
    from torch.distributed.fsdp import fully_shard

    for block in getattr(model, "blocks", ()):
        fully_shard(block, mesh=mesh, mp_policy=inner)
    fully_shard(model, mesh=mesh, mp_policy=outer)
    # The loss is already over all tokens; fully_shard would divide by the number of ranks again.
    for module in _sharded_modules(model):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


def _sharded_modules(model: nn.Module) -> Iterator[FSDPModule]:
    """Yield the modules to which `fully_shard` was applied, the model first."""
    from torch.distributed.fsdp import FSDPModule

    return (module for module in model.modules() if isinstance(module, FSDPModule))


def _dtype(option: str, name: str) -> torch.dtype:
    expect_one_of(option, name, DTYPE_OF_NAME)
    return DTYPE_OF_NAME[name]
