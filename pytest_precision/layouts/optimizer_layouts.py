"""Layouts with optimizers that torch lacks: whole weights on every rank, state in exact dtypes.

The weight that the next step updates (a stored master, the parameter with its remainder, the
parameter with its compensation) is observed as `master`, whatever it is stored as.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pytest_precision._torch.distributed import whole_checkpoint
from pytest_precision.engine.engine import Engine
from pytest_precision.errors import expected_but_got, named
from pytest_precision.layouts.compute import compute_in
from pytest_precision.layouts.dtypes import (
    STORED_MASTERS,
    STORED_MOMENTS,
    UNSCALED,
    expect_saved_dtype,
    resident,
    state_dtype,
    storage_dtype,
)
from pytest_precision.layouts.support import ON_PARAMETERS, supports
from pytest_precision.matrix.cell import Cell
from pytest_precision.optim.any_precision import AnyPrecisionAdamW
from pytest_precision.optim.fused_adam import FusedAdam, decoupled_owners
from pytest_precision.workloads.base import Workload


class ExactStateEngine(Engine):
    """Replicated training whose checkpoints keep every tensor's dtype.

    torch's `get_state_dict` creates missing state by a step of its own, which counters include; and
    `torch.distributed.checkpoint.load` casts values to the dtypes of the tensors that it is given,
    which turns most masters into a remainder of 0. So this engine reads a checkpoint as it was
    written, and refuses what would have to be cast.
    """

    optimizer: FusedAdam | AnyPrecisionAdamW

    def effective(self, parameter: Tensor) -> Tensor:
        """Return the weight that the optimizer's next step updates, in fp32."""
        return self.optimizer.master(parameter)

    def state_dict(self) -> dict[str, Any]:
        """Return all training state without casts; optimizer state by parameter names."""
        names = [name for name, _ in self.masters()]
        optimizer = self.optimizer.state_dict()
        state = {
            "model": self.model.state_dict(),
            "optimizer": {
                "state": {
                    names[p]: parameter_state for p, parameter_state in optimizer["state"].items()
                },
                "param_groups": [
                    {**group, "params": [names[p] for p in group["params"]]}
                    for group in optimizer["param_groups"]
                ],
            },
        }
        return state | self.state_beside_weights()

    def load(self, folder: Path) -> None:
        """Load a checkpoint from a folder; raise ValueError if a tensor would have to be cast."""
        self.load_state_dict(whole_checkpoint(folder))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a `state_dict` of an engine with the same options.

        Raises:
            ValueError: where something would have to be cast, or belongs to other parameters.
        """
        for name, tensor in self.model.state_dict().items():
            if name in state["model"]:
                expect_saved_dtype(name, tensor, state["model"][name])
        saved = [group["params"] for group in state["optimizer"]["param_groups"]]
        groups = self.state_dict()["optimizer"]["param_groups"]
        if saved != [group["params"] for group in groups]:
            raise ValueError(
                expected_but_got(
                    f"a checkpoint of parameter groups {[group['params'] for group in groups]}",
                    saved,
                    "load what an engine of the same workload saved",
                )
            )
        # A distributed checkpoint drops empty mappings, such as the state before the first step.
        self.optimizer.load_state_dict({"state": {}, **state["optimizer"]})
        self.model.load_state_dict(state["model"])
        self.load_state_beside_weights(state)


class FusedAdamEngine(ExactStateEngine):
    """Training with `FusedAdam`: gradients are reduced in parameters' dtype, then cast to fp32."""

    optimizer: FusedAdam

    def clip_grads(self) -> None:
        """Cast the reduced gradients to fp32 for the optimizer, then clip the fp32 gradients.

        They become `decoupled_grad`. The kernel upcasts its gradients itself, but clipping in bf16
        would round them first.
        """
        parameters = [parameter for _, parameter in self.masters()]
        for parameter in parameters:
            gradient = parameter.grad
            parameter.decoupled_grad = None if gradient is None else gradient.float()  # type: ignore[attr-defined]
        self.clip(decoupled_owners(parameters))


@supports({**ON_PARAMETERS, "fp16": ["fp32", "fp16"]})
def fused_adam(
    workload: Workload,
    cell: Cell,
    *,
    master_weights: bool = True,
    store_param_remainders: bool = False,
    master_weight_dtype: str = "fp32",
    exp_avg_dtype: str = "fp32",
    exp_avg_sq_dtype: str = "fp32",
) -> Engine:
    """Set up Transformer Engine's `FusedAdam` on parameters stored as `cell.primary_weight`.

    Args:
        workload: what is trained.
        cell: the point of the matrix; an fp32 parameter is its own master.
        master_weights: update a copy of each bf16 parameter.
        store_param_remainders: store that copy as the parameter and 16 bits.
        master_weight_dtype: dtype of that copy: fp32, fp16.
        exp_avg_dtype: dtype of the first moment: fp32, bf16, fp16, fp8. The moments of a tensor
            whose gradients are all zero are NaN in fp8, as they are in Transformer Engine.
        exp_avg_sq_dtype: dtype of the second moment, with the same choices.

    Raises:
        ValueError: for a dtype that is not known, and for options that would have no effect.
    """
    if master_weight_dtype != "fp32" or store_param_remainders:
        _expect_masters(
            master_weights, storage_dtype(cell), master_weight_dtype, store_param_remainders
        )
    model, compute = resident(workload.model(cell), cell)
    optimizer = FusedAdam(
        workload.groups(model),
        master_weights=master_weights,
        master_weight_dtype=state_dtype("master_weight_dtype", master_weight_dtype, STORED_MASTERS),
        exp_avg_dtype=state_dtype("exp_avg_dtype", exp_avg_dtype, STORED_MOMENTS),
        exp_avg_sq_dtype=state_dtype("exp_avg_sq_dtype", exp_avg_sq_dtype, STORED_MOMENTS),
        use_decoupled_grad=True,
        store_param_remainders=store_param_remainders,
    )
    return FusedAdamEngine(
        workload, cell, model, optimizer, forward_model=compute_in(model, compute)
    )


@supports(ON_PARAMETERS)
def any_precision_adamw(
    workload: Workload,
    cell: Cell,
    *,
    use_kahan_summation: bool = True,
    momentum_dtype: str = "bf16",
    variance_dtype: str = "bf16",
    compensation_buffer_dtype: str = "bf16",
) -> Engine:
    """Set up AReaL's `adam_bf16` on parameters stored as `cell.primary_weight`.

    Gradients are clipped and used in the parameters' dtype.

    Args:
        workload: what is trained.
        cell: the point of the matrix.
        use_kahan_summation: keep the rounding error of each update and add it to the next one.
        momentum_dtype: dtype of the first moment: fp32, bf16.
        variance_dtype: dtype of the second moment: fp32, bf16.
        compensation_buffer_dtype: dtype of that rounding error: fp32, bf16.

    Raises:
        ValueError: for a dtype that is not known.
    """
    model, compute = resident(workload.model(cell), cell)
    optimizer = AnyPrecisionAdamW(
        workload.groups(model),
        use_kahan_summation=use_kahan_summation,
        momentum_dtype=state_dtype("momentum_dtype", momentum_dtype, UNSCALED),
        variance_dtype=state_dtype("variance_dtype", variance_dtype, UNSCALED),
        compensation_buffer_dtype=state_dtype(
            "compensation_buffer_dtype", compensation_buffer_dtype, UNSCALED
        ),
    )
    return ExactStateEngine(
        workload, cell, model, optimizer, forward_model=compute_in(model, compute)
    )


def _expect_masters(
    master_weights: bool, storage: torch.dtype, master_weight_dtype: str, remainders: bool
) -> None:
    """Raise ValueError for options of master weights that have no effect or exclude each other."""
    if not master_weights or storage == torch.float32:
        raise ValueError(
            expected_but_got(
                "bf16 parameters with master weights",
                f"master_weights={master_weights!r} and {storage} parameters",
                "leave out master_weight_dtype and store_param_remainders, which have no effect",
            )
        )
    if remainders and master_weight_dtype != "fp32":
        raise ValueError(
            expected_but_got(
                "store_param_remainders with fp32 masters only",
                named("master_weight_dtype", master_weight_dtype),
                "leave one of them out",
            )
        )
