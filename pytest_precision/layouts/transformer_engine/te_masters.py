"""Masters of Transformer Engine's weights, in its `FusedAdam` or beside the model; their casts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_precision.engine.groups import updated_tensors
from pytest_precision.formats.transformer_engine.grouped_tensors import is_group, members
from pytest_precision.formats.transformer_engine.storages import family
from pytest_precision.layouts.dtypes import STORED_MASTERS, STORED_MOMENTS, state_dtype
from pytest_precision.layouts.transformer_engine.shown import values_of
from pytest_precision.layouts.transformer_engine.te_engine import TransformerEngine
from pytest_precision.matrix.cell import Cell
from pytest_precision.optim import remainder
from pytest_precision.optim.fused_adam import decoupled_owners
from pytest_precision.workloads.base import Workload


def initial_of(parameter: Any) -> Tensor:
    """Return a parameter's fp32 value from before quantization, with which a master weight starts.

    It is kept on the CPU since the parameter was made; `FusedAdam` does not ask for it.
    """
    if hasattr(parameter, "get_high_precision_init_val"):
        initial_tensor: Tensor = parameter.get_high_precision_init_val()
        parameter.clear_high_precision_init_val()
        return initial_tensor.to(parameter.device).float().reshape(parameter.shape)
    if not is_group(parameter):
        return values_of(parameter).detach().float().clone()
    return torch.stack([initial_of(part) for part in members(parameter)])


def moments(exp_avg_dtype: str, exp_avg_sq_dtype: str) -> dict[str, torch.dtype]:
    """Return the moments' dtypes as arguments of `FusedAdam`."""
    return {
        "exp_avg_dtype": state_dtype("exp_avg_dtype", exp_avg_dtype, STORED_MOMENTS),
        "exp_avg_sq_dtype": state_dtype("exp_avg_sq_dtype", exp_avg_sq_dtype, STORED_MOMENTS),
    }


def master_in(optimizer: Any, parameter: Tensor) -> Tensor:
    """Return the fp32 value that `FusedAdam` updates next: its master, or the parameter."""
    stored_tensor: Tensor | None = optimizer.state.get(parameter, {}).get("master_param")
    if stored_tensor is None:
        return values_of(parameter).float()
    if stored_tensor.dtype is torch.int16:
        return remainder.join(parameter.detach(), stored_tensor)
    master: Tensor = optimizer.get_unscaled_state(parameter, "master_param")
    return master


class OptimizerMasters(TransformerEngine):
    """A training engine whose masters `FusedAdam` keeps in its state and casts into the weights.

    Args:
        workload: what is trained.
        cell: the point of the matrix.
        model: the model, stored as the cell says.
        store_param_remainders: keep a master of a bf16 parameter as that and 16 bits.
        master_weight_dtype: dtype of the masters otherwise: fp32, fp16.
        exp_avg_dtype: dtype of the first moment: fp32, bf16, fp16, fp8.
        exp_avg_sq_dtype: dtype of the second moment, with the same choices.
    """

    def __init__(
        self,
        workload: Workload,
        cell: Cell,
        model: nn.Module,
        *,
        store_param_remainders: bool = False,
        master_weight_dtype: str = "fp32",
        exp_avg_dtype: str = "fp32",
        exp_avg_sq_dtype: str = "fp32",
    ) -> None:
        optimizers = import_module("transformer_engine.pytorch.optimizers")
        optimizer = optimizers.FusedAdam(
            workload.groups(model),
            master_weights=True,
            use_decoupled_grad=True,
            store_param_remainders=store_param_remainders,
            master_weight_dtype=state_dtype(
                "master_weight_dtype", master_weight_dtype, STORED_MASTERS
            ),
            **moments(exp_avg_dtype, exp_avg_sq_dtype),
        )
        for parameter in updated_tensors(optimizer):
            if hasattr(parameter, "get_high_precision_init_val"):
                optimizer.initialize_state(parameter, False)
                optimizer.set_scaled_state(parameter, "master_param", initial_of(parameter))
        super().__init__(workload, cell, model, optimizer)

    def clip_grads(self) -> None:
        """Cast the reduced gradients to fp32 for the optimizer, then clip the fp32 gradients."""
        for parameter in self._trained:
            gradient = self.gradient(parameter)
            parameter.decoupled_grad = None if gradient is None else gradient.float()  # type: ignore[attr-defined]
        self.clip(decoupled_owners(self._trained))

    def effective(self, parameter: Tensor) -> Tensor:
        """Return the master weight from which the next update of a parameter starts."""
        return master_in(self.optimizer, parameter)


class OutsideMasters(TransformerEngine):
    """A training engine with fp32 masters outside the model, cast into weights after an update.

    This is how Megatron does it, and the only way for a single grouped weight, which has no memory
    of its own that a kernel could update.

    Args:
        workload: what is trained.
        cell: the point of the matrix.
        model: the model, stored as the cell says.
        cast_by_shards: whether each rank casts its own elements by `quantize_master_weights`, and
            gets the bytes of the others, as with Megatron's distributed optimizer.
        exp_avg_dtype: dtype of the first moment: fp32, bf16, fp16, fp8.
        exp_avg_sq_dtype: dtype of the second moment, with the same choices.

    Attributes:
        pairs: each trained parameter with its master.
    """

    def __init__(
        self,
        workload: Workload,
        cell: Cell,
        model: nn.Module,
        *,
        cast_by_shards: bool = False,
        exp_avg_dtype: str = "fp32",
        exp_avg_sq_dtype: str = "fp32",
    ) -> None:
        optimizers = import_module("transformer_engine.pytorch.optimizers")
        groups = workload.groups(model)
        self.cast_by_shards = cast_by_shards
        self.pairs: list[tuple[Any, nn.Parameter]] = [
            (parameter, nn.Parameter(initial_of(parameter)))
            for group in groups
            for parameter in group["params"]
        ]
        masters = iter([master for _, master in self.pairs])
        master_groups = [
            {**group, "params": [next(masters) for _ in group["params"]]} for group in groups
        ]
        self._names = {id(p): name for name, p in model.named_parameters()}
        optimizer = optimizers.FusedAdam(master_groups, **moments(exp_avg_dtype, exp_avg_sq_dtype))
        super().__init__(workload, cell, model, optimizer)

    def masters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each weight's name with its fp32 master."""
        return ((self._names[id(parameter)], master) for parameter, master in self.pairs)

    def clip_grads(self) -> None:
        """Cast the reduced gradients to fp32 for the masters, then clip the fp32 gradients."""
        for parameter, master in self.pairs:
            gradient = self.gradient(parameter)
            master.grad = None if gradient is None else values_of(gradient).float()
        super().clip_grads()

    @torch.no_grad()
    def update_weights(self) -> None:
        """Update the masters, and round or quantize them into the weights."""
        super().update_weights()
        self.store_masters()

    def state_dict(self) -> dict[str, Any]:
        """Return the training state with the masters."""
        return super().state_dict() | {"master": [master.data for _, master in self.pairs]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the masters, and cast them into the weights.

        A single grouped weight is loaded by way of its rowwise values, of which MXFP8 makes another
        columnwise operand than the one that was saved.
        """
        super().load_state_dict(state)
        with torch.no_grad():
            for (parameter, master), saved in zip(self.pairs, state["master"], strict=True):
                master.copy_(saved)
                store_master(parameter, master)

    def store_masters(self) -> None:
        """Round or quantize the masters into the weights."""
        if self.cast_by_shards:
            store_by_shards(self.pairs, self.rank, self.cell.world_size)
            return
        for parameter, master in self.pairs:
            store_master(parameter, master)


BYTES = ("_data", "_rowwise_data", "_columnwise_data")
"""Attributes of Transformer Engine's tensors with the bytes that a shard of masters decides."""


def store_master(parameter: Any, master: Tensor) -> None:
    """Round or quantize a master into its parameter; if that is grouped, matrix by matrix."""
    if not is_group(parameter):
        parts: list[tuple[Any, Tensor]] = [(parameter, master)]
    else:
        parts = list(zip(members(parameter), master.unbind(), strict=True))
    for part, exact_tensor in parts:
        if hasattr(part, "quantize_"):
            part.quantize_(exact_tensor.to(part.dtype))
        else:
            part.copy_(exact_tensor)


def store_by_shards(pairs: Sequence[tuple[Any, Tensor]], rank: int, ranks: int) -> None:
    """Cast masters to weights, each rank its share of elements, and exchange the bytes.

    Args:
        pairs: weights with whole masters.
        rank: that of this process.
        ranks: number of ranks.
    """
    utils = import_module("transformer_engine.pytorch.tensor.utils")
    quantized = [(weight, master) for weight, master in pairs if family(weight)]
    for weight, master in pairs:
        if not family(weight):
            store_master(weight, master)
    weights = [weight for weight, _ in quantized]
    ranges = [_range(weight, rank, ranks) for weight in weights]
    shards = [
        master.detach().view(-1)[start:stop] if start < stop else None
        for (_, master), (start, stop) in zip(quantized, ranges, strict=True)
    ]
    utils.quantize_master_weights(
        weights,
        shards,
        [start if start < stop else None for start, stop in ranges],
        dist.group.WORLD,
        manual_post_all_gather_processing=True,
    )
    for weight in weights:
        for owner in range(ranks):
            _send(weight, _range(weight, owner, ranks), owner)
    utils.post_all_gather_processing(weights)


def _range(weight: Any, rank: int, ranks: int) -> tuple[int, int]:
    """Return begin and end of a rank's share of a weight's elements.

    In NVFP4 it is a whole number of bytes, each of which holds two elements.
    """
    together = 2 if family(weight) == "nvfp4" else 1
    each = -(-weight.numel() // (ranks * together)) * together
    return min(rank * each, weight.numel()), min((rank + 1) * each, weight.numel())


def _send(weight: Any, elements: tuple[int, int], owner: int) -> None:
    """Broadcast a range of a weight's bytes from the rank that has cast it; a collective."""
    for name in BYTES:
        stored_bytes = getattr(weight, name, None)
        made_later = name == "_columnwise_data" and family(weight) != "mxfp8"
        if stored_bytes is not None and not made_later and elements[0] < elements[1]:
            start, stop = (place * stored_bytes.numel() // weight.numel() for place in elements)
            dist.broadcast(stored_bytes.view(-1)[start:stop], owner)
