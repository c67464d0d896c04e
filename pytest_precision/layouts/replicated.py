"""Layouts that keep all weights on every rank: AdamW, also in autocast or on masters, and DDP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pytest_precision._torch.distributed import leave_to_ddp
from pytest_precision.engine.engine import Engine
from pytest_precision.engine.main_grad import accumulate
from pytest_precision.engine.quantizing import scaling_states
from pytest_precision.layouts.compute import compute_in
from pytest_precision.layouts.dtypes import DTYPE_OF_NAME, resident
from pytest_precision.layouts.support import ON_PARAMETERS, supports
from pytest_precision.matrix.cell import Cell
from pytest_precision.workloads.base import Workload


@supports(ON_PARAMETERS)
def adamw(workload: Workload, cell: Cell) -> Engine:
    """Set up `torch.optim.AdamW` on parameters that are stored as `cell.primary_weight`.

    With fp32 the optimizer state is fp32 whatever the compute precision; with bf16 the parameters,
    both moments and the update itself are bf16, and updates below half a unit in the last place of
    a weight are lost. Quantized precisions quantize the weights anew in every step.
    """
    model, compute = resident(workload.model(cell), cell)
    optimizer = torch.optim.AdamW(workload.groups(model))
    return Engine(workload, cell, model, optimizer, forward_model=compute_in(model, compute))


class MasterEngine(Engine):
    """Training with low-precision parameters and an fp32 master copy of the model.

    Gradients are accumulated and reduced in the dtype of the parameters, and upcast before they
    are clipped.
    """

    def __init__(self, workload: Workload, cell: Cell, model: nn.Module, master: nn.Module) -> None:
        self.master_model = master
        optimizer = torch.optim.AdamW(workload.groups(master))
        super().__init__(workload, cell, model, optimizer)

    @property
    def optimized_model(self) -> nn.Module:
        """Return the fp32 copy of the model."""
        return self.master_model

    def _pairs(self) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        both = zip(self.model.parameters(), self.master_model.parameters(), strict=True)
        return ((resident, master) for resident, master in both if master.requires_grad)

    def forward_backward(self, step: int) -> None:
        """Zero the gradients of the parameters, then accumulate those of all microbatches."""
        self.model.zero_grad()
        super().forward_backward(step)

    def clip_grads(self) -> None:
        """Cast the reduced gradients to fp32 for the masters, then clip the fp32 gradients."""
        for parameter, master in self._pairs():
            gradient = self.gradient(parameter)
            master.grad = None if gradient is None else gradient.float()
        super().clip_grads()

    def update_weights(self) -> None:
        """Update the masters, then round or quantize them into the parameters."""
        super().update_weights()
        self._round_masters()

    @torch.no_grad()
    def _round_masters(self) -> None:
        for parameter, master in self._pairs():
            parameter.copy_(master)

    def state_dict(self) -> dict[str, Any]:
        """Return the training state with parameters and masters."""
        state = super().state_dict()
        named = self.master_model.named_parameters(remove_duplicate=False)
        masters = {name: state["model"][name] for name, p in named if p.requires_grad}
        return state | {"model": self.model.state_dict(), "master": masters}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load masters and parameters, without deriving one from the other."""
        # Only here, since a session that names this layout imports this module, but never loads.
        from torch.distributed.checkpoint.state_dict import set_state_dict

        set_state_dict(
            self.master_model,
            self.optimizer,
            model_state_dict=self.master_model.state_dict() | state["master"],
            optim_state_dict=state["optimizer"],
        )
        self.model.load_state_dict(state["model"])
        self.load_state_beside_weights(state)


class MainGradEngine(MasterEngine):
    """Training whose gradients are accumulated and reduced in fp32 `main_grad` buffers.

    The GEMM itself adds to the buffer of a weight whose accumulation is fused; every other gradient
    is added after the backward of each microbatch, in the dtype that autograd made it in.
    """

    def __init__(self, workload: Workload, cell: Cell, model: nn.Module, master: nn.Module) -> None:
        super().__init__(workload, cell, model, master)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.main_grad = torch.zeros(  # type: ignore[attr-defined]
                    parameter.shape, dtype=torch.float32, device=parameter.device
                )

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """Return the `main_grad` buffer of a parameter; None if the parameter is frozen."""
        return getattr(parameter, "main_grad", None)

    def forward_backward(self, step: int) -> None:
        """Zero the `main_grad` buffers, then accumulate the gradients of all microbatches there."""
        for parameter in self.model.parameters():
            gradient = self.gradient(parameter)
            if gradient is not None:
                gradient.zero_()
        super().forward_backward(step)

    def microbatch_done(self) -> None:
        """Add gradients to `main_grad` unless a GEMM has already done so, and record the sums."""
        for name, parameter in self.model.named_parameters():
            gradient = self.gradient(parameter)
            if gradient is None:
                continue
            accumulate(parameter)
            # The sums after each microbatch, so that the first wrong one is named.
            self._keep_of_microbatch("grad", name, gradient)


@supports(
    {"bf16": ["bf16"], "fp16": ["fp16"], "quantized": ["bf16", "quantized"]},
    fused=["bf16", "quantized"],
)
def master_adamw(workload: Workload, cell: Cell, *, main_grad: bool = False) -> Engine:
    """Set up AdamW on fp32 masters, which are initialised from the unrounded model.

    Args:
        workload: what is trained.
        cell: the resident parameters are stored in its `primary_weight`.
        main_grad: accumulate and reduce gradients in fp32 buffers rather than in the dtype of the
            parameters; fused accumulation does so anyhow.
    """
    master = workload.model(cell)
    model, _ = resident(deepcopy(master), cell)
    engine = MainGradEngine if main_grad or cell.grad_accum_fusion else MasterEngine
    return engine(workload, cell, model, master)


class InDdp(Engine):
    """A training engine whose gradients torch's `DistributedDataParallel` reduces in backward.

    Attributes:
        ddp: the wrapped model.
    """

    unobservable: ClassVar = {"grad": "DistributedDataParallel reduces gradients inside backward"}
    needs_even_shares: ClassVar = True

    ddp: DistributedDataParallel

    def microbatch_context(self, *, last: bool) -> AbstractContextManager[Any]:
        """Return a context in which DDP reduces gradients in the last microbatch only."""
        return nullcontext() if last else self.ddp.no_sync()

    def reduce_grads(self) -> None:
        """Do nothing: DDP has already reduced inside backward."""


class DDPEngine(InDdp):
    """Data-parallel training by DDP, with whole weights and optimizer state on every rank."""

    def __init__(
        self, workload: Workload, cell: Cell, model: nn.Module, compute: torch.dtype
    ) -> None:
        wrapped = compute_in(model, compute)
        # Amaxes are reduced by their own rule; DDP would overwrite them with those of rank 0.
        slots = [
            f"{prefix}.{name}"
            for prefix, slot in scaling_states(wrapped)
            for name, _ in slot.named_buffers()
        ]
        leave_to_ddp(wrapped, slots)
        self.ddp = DistributedDataParallel(wrapped)
        # DDP's default divides by the number of ranks; the loss is already over all tokens.
        self.ddp.register_comm_hook(None, sum_of_ranks)
        optimizer = torch.optim.AdamW(workload.groups(model))
        super().__init__(workload, cell, model, optimizer, forward_model=self.ddp)


# DDP reads a hook's annotations and does not understand postponed ones.
def sum_of_ranks(_state, bucket):  # type: ignore[no-untyped-def]
    """Sum a bucket's gradients over the ranks, as a communication hook of DDP."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda future: future.value()[0])


@supports(ON_PARAMETERS)
def ddp(workload: Workload, cell: Cell) -> Engine:
    """Set up `DistributedDataParallel` and AdamW on parameters stored as `cell.primary_weight`.

    Every forward overwrites the buffers of all ranks with those of rank 0, torch's default.
    """
    model, compute = resident(workload.model(cell), cell)
    return DDPEngine(workload, cell, model, compute)


class InAutocast(nn.Module):
    """Wraps a module to run its forward inside `torch.autocast`."""

    def __init__(self, module: nn.Module, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.module = module
        self.device = device
        self.dtype = dtype

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module in autocast; the backward runs outside, as torch advises."""
        with torch.autocast(self.device, dtype=self.dtype):
            return self.module(*args, **kwargs)


@supports({"bf16": ["fp32"], "fp16": ["fp32"]})
def autocast(workload: Workload, cell: Cell) -> Engine:
    """Set up `torch.optim.AdamW` on fp32 parameters; each forward runs in `torch.autocast`.

    Products are in the precision of the cell; norms, softmax and sums stay in fp32, where torch's
    table of operators says so. With fp16 the loss is scaled dynamically.
    """
    model = workload.model(cell)
    optimizer = torch.optim.AdamW(workload.groups(model))
    forward = InAutocast(model, cell.device, DTYPE_OF_NAME[cell.precision])
    return Engine(workload, cell, model, optimizer, forward_model=forward)
