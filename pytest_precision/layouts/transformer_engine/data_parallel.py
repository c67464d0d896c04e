"""Transformer Engine's layers in torch's `DistributedDataParallel`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_precision.errors import expected_but_got, named
from pytest_precision.layouts.replicated import sum_of_ranks
from pytest_precision.layouts.transformer_engine.layers import InEngineAutocast
from pytest_precision.layouts.transformer_engine.masters import OptimizerMasters
from pytest_precision.matrix.cell import Cell
from pytest_precision.workloads.base import Workload


class EngineInDdp(OptimizerMasters):
    """`DistributedDataParallel` reduces the gradients, and `FusedAdam` has the masters.

    Raises:
        ValueError: gradients are accumulated where DDP does not look for them.
    """

    unobservable: ClassVar = {"grad": "DistributedDataParallel reduces gradients inside backward"}
    needs_even_shares: ClassVar = True

    def __init__(self, workload: Workload, cell: Cell, model: nn.Module, **adam: Any) -> None:
        if cell.grad_accum_fusion:
            raise ValueError(
                expected_but_got(
                    "gradients that DDP reduces",
                    named("grad_accum_fusion", cell.grad_accum_fusion),
                    "leave it out of the matrix: GEMMs add to buffers of their own then",
                )
            )
        super().__init__(workload, cell, model, **adam)
        # The weights of block scaling and MXFP8 cannot be flattened to be sent from rank 0.
        self.ddp = DistributedDataParallel(model, init_sync=False)
        self.ddp.register_comm_hook(None, sum_of_ranks)
        self.forward_model = InEngineAutocast(self.ddp, cell.precision)

    def microbatch_context(self, *, last: bool) -> AbstractContextManager[Any]:
        """Reduce in the backward of the last microbatch only."""
        return nullcontext() if last else self.ddp.no_sync()

    def reduce_grads(self) -> None:
        """Do nothing: DDP has already reduced inside backward."""
