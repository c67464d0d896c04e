"""Layouts that keep all weights on every rank: plain AdamW, AdamW on fp32 masters, and DDP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_precision.cell import Cell
from pytest_precision.engine import Engine
from pytest_precision.layouts.storage import compute_in, dtypes
from pytest_precision.workloads.base import Workload


def adamw(workload: Workload, cell: Cell) -> Engine:
    """`torch.optim.AdamW` on resident parameters in the dtype of `cell.primary_weight`.

    With fp32 the optimizer state is fp32 whatever the compute precision; with bf16 the parameters,
    both moments and the update itself are bf16, and updates below half a unit in the last place of
    a weight are lost.
    """
    storage, compute = dtypes(cell, "adamw")
    model = workload.model(cell).to(storage)
    optimizer = torch.optim.AdamW(workload.groups(model))
    return Engine(workload, cell, model, optimizer, forward_model=compute_in(model, compute))


class MasterEngine(Engine):
    """Low-precision resident parameters; the optimizer updates an fp32 copy of the model.

    Gradients are accumulated and reduced in the dtype of the parameters, and upcast before they
    are clipped.
    """

    def __init__(self, workload: Workload, cell: Cell, storage: torch.dtype) -> None:
        self.master_model = workload.model(cell)
        model = deepcopy(self.master_model).to(storage)
        optimizer = torch.optim.AdamW(workload.groups(self.master_model))
        super().__init__(workload, cell, model, optimizer)

    @property
    def optimized_model(self) -> nn.Module:
        """The fp32 copy."""
        return self.master_model

    def _pairs(self) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        return zip(self.model.parameters(), self.master_model.parameters(), strict=True)

    def forward_backward(self, step: int) -> None:
        """Accumulate on the resident parameters, whose gradients the optimizer does not know."""
        self.model.zero_grad()
        super().forward_backward(step)

    def clip_grads(self) -> None:
        """Upcast the reduced gradients to fp32, then clip those."""
        for parameter, master in self._pairs():
            master.grad = None if parameter.grad is None else parameter.grad.float()
        super().clip_grads()

    def update_weights(self) -> None:
        """Update the masters and round them to the resident parameters."""
        super().update_weights()
        self._round_masters()

    @torch.no_grad()
    def _round_masters(self) -> None:
        for parameter, master in self._pairs():
            parameter.copy_(master)

    def state_dict(self) -> dict[str, Any]:
        """With the resident parameters beside the masters, as real checkpoints have both."""
        state = super().state_dict()
        return state | {"model": self.model.state_dict(), "master": state["model"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load both; neither is derived from the other."""
        super().load_state_dict(state | {"model": state["master"]})
        self.model.load_state_dict(state["model"])


def master_adamw(workload: Workload, cell: Cell) -> Engine:
    """bf16 resident parameters, fp32 masters initialised from the unrounded model, fp32 AdamW."""
    storage, _ = dtypes(cell, "master_adamw", primary_weights=("bf16",))
    return MasterEngine(workload, cell, storage)


class DDPEngine(Engine):
    """torch's `DistributedDataParallel`, which reduces gradients inside backward."""

    unobservable: ClassVar = {"grad": "DistributedDataParallel reduces gradients inside backward"}

    def __init__(
        self, workload: Workload, cell: Cell, model: nn.Module, compute: torch.dtype
    ) -> None:
        self.ddp = DistributedDataParallel(compute_in(model, compute))
        # DDP's default divides by the number of ranks; the loss is already over all tokens.
        self.ddp.register_comm_hook(None, _sum_of_ranks)
        optimizer = torch.optim.AdamW(workload.groups(model))
        super().__init__(workload, cell, model, optimizer, forward_model=self.ddp)

    def microbatch_context(self, *, last: bool) -> AbstractContextManager[Any]:
        """Reduce in the backward of the last microbatch only."""
        return nullcontext() if last else self.ddp.no_sync()

    def reduce_grads(self) -> None:
        """Nothing is left to do: DDP has reduced in backward."""


# DDP reads a hook's annotations and does not understand postponed ones.
def _sum_of_ranks(_state, bucket):  # type: ignore[no-untyped-def]
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda future: future.value()[0])


def ddp(workload: Workload, cell: Cell) -> Engine:
    """`DistributedDataParallel` with `torch.optim.AdamW`, stored in `cell.primary_weight`.

    Every forward overwrites the buffers of all ranks by those of rank 0, as torch does by default.
    """
    storage, compute = dtypes(cell, "ddp")
    return DDPEngine(workload, cell, workload.model(cell).to(storage), compute)
