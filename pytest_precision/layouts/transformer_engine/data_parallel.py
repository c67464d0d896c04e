"""Transformer Engine's layers in torch's `DistributedDataParallel` and in its `fully_shard`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from pytest_precision._torch.distributed import local_chunk
from pytest_precision.errors import expected_but_got, named
from pytest_precision.formats.transformer_engine.storages import family
from pytest_precision.layouts.replicated import InDdp, sum_of_ranks
from pytest_precision.layouts.sharded import FSDP2Engine, shard
from pytest_precision.layouts.transformer_engine.kernels_there import recipe_of
from pytest_precision.layouts.transformer_engine.layers import InEngineAutocast
from pytest_precision.layouts.transformer_engine.te_masters import OptimizerMasters, initial_of
from pytest_precision.matrix.cell import Cell
from pytest_precision.workloads.base import Workload

DEQUANTIZED = ("block", "nvfp4")
"""Families of weights that `fully_shard` dequantizes, unless layers quantize the shards."""

WHOLE_BLOCKS = 128
"""Blocks of scales, with their padding, are whole in a multiple of so many rows and columns."""


class EngineInDdp(InDdp, OptimizerMasters):
    """Training in DDP with Transformer Engine's layers, with masters in `FusedAdam`.

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
    """Training in `fully_shard` with Transformer Engine's layers, with masters in `FusedAdam`.

    Gradients are accumulated and reduced in bf16, as DDP does. Masters of quantized weights are
    made of what these were before, which `fully_shard` forgets.

    Raises:
        ValueError: gradients are accumulated where `fully_shard` does not look for them, or a
            shard would have parts of blocks.
    """

    def __init__(self, workload: Workload, cell: Cell, model: nn.Module, **adam: Any) -> None:
        _expect_no_buffers("fully_shard", cell)
        quantized = cell.primary_weight == "quantized"
        _expect_whole_blocks(model, cell.world_size)
        made_of = {name: initial_of(p) for name, p in model.named_parameters() if family(p)}
        late = [*_put_on_meta(model, made_of)]
        policy = MixedPrecisionPolicy()
        # Where the CPU stands in for a GPU, Transformer Engine's weights say that they are on one.
        shard(model, init_device_mesh("cuda", (cell.world_size,)), policy, policy)
        for layer, wholes in late:
            _quantize_shards(layer, wholes)
        super().__init__(workload, cell, model, **adam)
        for name, initial_tensor in made_of.items():
            parameter = model.get_parameter(name)
            rows = _own_rows(parameter, initial_tensor)
            self.optimizer.initialize_state(parameter, False)  # type: ignore[attr-defined]
            self.optimizer.set_scaled_state(parameter, "master_param", rows)  # type: ignore[attr-defined]
        if recipe_of(cell.precision) is not None and not quantized:
            caches = "Transformer Engine quantizes gathered weights in each forward, and keeps none"
            self.unobservable = {**self.unobservable, "used_quantized": caches}  # type: ignore[misc]

    def effective(self, parameter: Tensor) -> Tensor:
        """Return the shard of the master from which the next update starts."""
        assert isinstance(parameter, DTensor)
        stored = self.optimizer.state[parameter].get("master_param")
        return parameter.float() if stored is None else stored


def _put_on_meta(
    model: nn.Module, made_of: Mapping[str, Tensor]
) -> Iterator[tuple[Any, dict[str, Tensor]]]:
    """Replace weights that `fully_shard` would dequantize by bf16 ones on the device `meta`.

    Args:
        model: the model to shard.
        made_of: name of each quantized weight to its values before.

    Yields:
        A layer, and its own names of such weights to their values.
    """
    for prefix, layer in model.named_modules():
        parameters = dict(layer.named_parameters(recurse=False))
        wholes = {
            name: made_of[f"{prefix}.{name}"]
            for name, p in parameters.items()
            if family(p) in DEQUANTIZED
        }
        for name, whole_tensor in wholes.items():
            empty = torch.empty_like(whole_tensor, dtype=torch.bfloat16, device="meta")
            setattr(layer, name, nn.Parameter(empty, requires_grad=parameters[name].requires_grad))
        if wholes:
            yield layer, wholes


def _own_rows(parameter: Tensor, whole_tensor: Tensor) -> Tensor:
    """Return the rows of `whole_tensor` that belong to this rank's shard of a parameter."""
    assert isinstance(parameter, DTensor)
    (start, *_), (number, *_) = local_chunk(parameter)
    return whole_tensor[start : start + number]


def _quantize_shards(layer: Any, wholes: Mapping[str, Tensor]) -> None:
    """Fill a layer's weights, sharded on the device `meta`, with this rank's rows, quantized.

    Args:
        layer: after `fully_shard`.
        wholes: its own name of each weight on `meta` to all of its values.
    """
    parameters = dict(layer.named_parameters())
    for name, parameter in parameters.items():
        whole = wholes.get(name)
        rows = parameter.to_local() if whole is None else _own_rows(parameter, whole)
        layer.param_init_meta[name].init_fn = partial(_fill, rows.detach().clone())
    layer.preserve_high_precision_init_val = False
    layer.reset_parameters()
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(parameters[name].requires_grad)


@torch.no_grad()
def _fill(rows: Tensor, weight: Tensor) -> None:
    weight.copy_(rows)


def _expect_whole_blocks(model: nn.Module, ranks: int) -> None:
    """Raise ValueError for weights whose scaling blocks cross ranks, or whose scales are padded.

    Transformer Engine does not copy the padding of MXFP8's. On one rank, torch gathers the codes
    and no scales: see docs/evidence/findings.md.
    """
    for name, parameter in model.named_parameters():
        in_blocks = family(parameter) not in ("", "tensor")
        rows, columns = parameter.shape if in_blocks else (0, 0)
        if columns % WHOLE_BLOCKS or rows % (WHOLE_BLOCKS * ranks) or (rows and ranks == 1):
            raise ValueError(
                expected_but_got(
                    "two ranks or more, and block-scaled weights whose columns, and rows per rank, "
                    f"are multiples of {WHOLE_BLOCKS},",
                    f"{name} of {rows} x {columns} with world_size={ranks}",
                    "give the workload another width, or use ddp=True",
                )
            )


def _expect_no_buffers(by: str, cell: Cell) -> None:
    """Raise ValueError for fused gradient accumulation: DDP and FSDP2 do not reduce `main_grad`."""
    if cell.grad_accum_fusion:
        fused = named("grad_accum_fusion", cell.grad_accum_fusion)
        raise ValueError(
            expected_but_got(
                f"gradients that {by} can reduce",
                f"{fused}, which adds to other buffers",
                "leave this value out of the matrix",
            )
        )
