"""Transformer Engine's layers in torch's `DistributedDataParallel` and in its `fully_shard`."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from pytest_precision._torch.distributed import local_chunk
from pytest_precision.errors import expected_but_got, named
from pytest_precision.layouts.replicated import InDdp, sum_of_ranks
from pytest_precision.layouts.sharded import FSDP2Engine, shard
from pytest_precision.layouts.transformer_engine.layers import InEngineAutocast, recipe_of
from pytest_precision.layouts.transformer_engine.te_masters import OptimizerMasters, initial_of
from pytest_precision.matrix.cell import Cell
from pytest_precision.te.storages import family
from pytest_precision.workloads.base import Workload

WITH_SHARDS = ("fp8_delayed", "fp8_current", "mxfp8")
"""Precisions in which `fully_shard` leaves shards of quantized weights quantized."""

SCALES_PADDED_TO = 128
"""The scales of MXFP8 are padded to those of a multiple of so many rows and columns."""


class EngineInDdp(InDdp, OptimizerMasters):
    """`DistributedDataParallel` reduces the gradients, and `FusedAdam` has the masters.

    Raises:
        ValueError: gradients are accumulated where DDP does not look for them.
    """

    def __init__(self, workload: Workload, cell: Cell, model: nn.Module, **adam: Any) -> None:
        _expect_no_buffers("DDP", cell)
        super().__init__(workload, cell, model, **adam)
        # The weights of block scaling and MXFP8 cannot be flattened to be sent from rank 0.
        self.ddp = DistributedDataParallel(model, init_sync=False)
        self.ddp.register_comm_hook(None, sum_of_ranks)
        self.forward_model = InEngineAutocast(self.ddp, cell.precision)


class EngineInFsdp2(FSDP2Engine, OptimizerMasters):
    """`fully_shard` shards the weights, and `FusedAdam` has the masters of this rank's shards.

    Gradients are accumulated and reduced in bf16, as DDP does. Masters of quantized weights are
    made of what these were before, which `fully_shard` forgets.

    Raises:
        ValueError: gradients are accumulated where `fully_shard` does not look for them, or it
            cannot shard the quantized weights.
    """

    def __init__(self, workload: Workload, cell: Cell, model: nn.Module, **adam: Any) -> None:
        _expect_no_buffers("fully_shard", cell)
        quantized = cell.primary_weight == "quantized"
        if quantized and cell.precision not in WITH_SHARDS:
            raise ValueError(
                expected_but_got(
                    f"quantized weights in {' or '.join(WITH_SHARDS)}, which stay quantized,",
                    named("precision", cell.precision),
                    "leave it out of the matrix, or use ddp=True",
                )
            )
        _expect_whole_scales(model, cell.world_size)
        made_of = {name: initial_of(p) for name, p in model.named_parameters() if family(p)}
        policy = MixedPrecisionPolicy()
        # Where the CPU stands in for a GPU, Transformer Engine's weights say that they are on one.
        shard(model, init_device_mesh("cuda", (cell.world_size,)), policy, policy)
        super().__init__(workload, cell, model, **adam)
        for name, initial in made_of.items():
            parameter = model.get_parameter(name)
            assert isinstance(parameter, DTensor)
            (start, *_), (number, *_) = local_chunk(parameter)
            rows = initial[start : start + number]
            self.optimizer.initialize_state(parameter, False)  # type: ignore[attr-defined]
            self.optimizer.set_scaled_state(parameter, "master_param", rows)  # type: ignore[attr-defined]
        if recipe_of(cell.precision) is not None and not quantized:
            caches = "Transformer Engine quantizes gathered weights in each forward, and keeps none"
            self.unobservable = {**self.unobservable, "used_quantized": caches}  # type: ignore[misc]

    def effective(self, parameter: Tensor) -> Tensor:
        """Return the shard of the master that the next update starts from."""
        assert isinstance(parameter, DTensor)
        stored = self.optimizer.state[parameter].get("master_param")
        return parameter.float() if stored is None else stored


def _expect_whole_scales(model: nn.Module, ranks: int) -> None:
    """Refuse MXFP8 weights whose scales are padded, which Transformer Engine does not copy.

    On one rank, torch gathers the codes and no scales: see docs/findings.md.
    """
    for name, parameter in model.named_parameters():
        rows, columns = parameter.shape if family(parameter) == "mxfp8" else (0, 0)
        if columns % SCALES_PADDED_TO or rows % (SCALES_PADDED_TO * ranks) or (rows and ranks == 1):
            raise ValueError(
                expected_but_got(
                    "MXFP8 weights on two ranks or more, whose columns, and rows of each rank, are "
                    f"multiples of {SCALES_PADDED_TO},",
                    f"{name} of {rows} x {columns} on {ranks}",
                    "give the workload another width, or use ddp=True",
                )
            )


def _expect_no_buffers(by: str, cell: Cell) -> None:
    """Refuse a cell whose GEMMs accumulate gradients in buffers, which torch does not reduce."""
    if cell.grad_accum_fusion:
        raise ValueError(
            expected_but_got(
                f"gradients that {by} reduces",
                named("grad_accum_fusion", cell.grad_accum_fusion),
                "leave it out of the matrix: GEMMs add to buffers of their own then",
            )
        )
