"""The exact update of a weight in fp64, from the optimizer's own state after its step.

Lost updates alone are measured against it: it trusts the state, which `oracle/` judges.

Sources: the formulas of `torch.optim.SGD` and `torch.optim.Adam(W)`; Transformer Engine's and
AnyPrecision's Adam are the same in exact arithmetic, whatever they store their moments in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pytest_precision import optim
from pytest_precision.engine.groups import state_of
from pytest_precision.errors import NotMeasurableError
from pytest_precision.optim.scaled_state import decode_scaled, scale_name
from pytest_precision.recorders.oracle import claims
from pytest_precision.recorders.oracle.adam import ADAM_NUMBERS, AdamScalars
from pytest_precision.recorders.oracle.sgd import SGD_NUMBERS, SgdScalars

Hyperparameters = Mapping[str, Any]
"""Those of a parameter group before the step: a scheduler may have changed them since."""


@dataclass(frozen=True)
class Rule:
    """Computes the exact update of one parameter in fp64, chunk by chunk.

    Attributes:
        operands: tensors of the parameter's shape, as stored.
        compute: the update, fp64, from the effective weights before the step, fp64, and the same
            elements of the operands in their order.
    """

    operands: tuple[Tensor, ...]
    compute: Callable[..., Tensor]


def rule(
    optimizer: torch.optim.Optimizer, before: Hyperparameters, parameter: Tensor, grad: Tensor
) -> Rule:
    """Return how to compute the exact update of a parameter from its state after the step.

    Args:
        optimizer: the optimizer that made the step.
        before: hyperparameters of the parameter's group before the step.
        parameter: one of the optimizer's parameters.
        grad: the gradient that the step read.

    Raises:
        NotMeasurableError: for an optimizer whose formula is not known.
    """
    if hasattr(optimizer, "updater_of"):  # several optimizers in the place of one
        optimizer = optimizer.updater_of(parameter)
    claims.expect_claim(optimizer, (*claims.ADAM_CLASSES, *claims.SGD_CLASSES))
    state, name = state_of(optimizer, parameter), type(optimizer).__name__
    if claims.is_one_of(type(optimizer), claims.SGD_CLASSES):
        claims.expect_numbers(optimizer, before, SGD_NUMBERS)
        return _sgd(before, state, grad)
    claims.expect_numbers(optimizer, before, ADAM_NUMBERS)
    if not {"exp_avg", "exp_avg_sq"} <= state.keys():
        raise NotMeasurableError(f"{name} has no exp_avg and exp_avg_sq for this parameter")
    return _adam(optimizer, before, state)


def _sgd(before: Hyperparameters, state: Mapping[str, Any], grad: Tensor) -> Rule:
    buffer = state.get("momentum_buffer") if before["momentum"] else None
    sign = -1 if before.get("maximize") else 1
    # How much of the gradient the buffer took is in the buffer after the step.
    scalars = SgdScalars.of(before, step=1)

    def compute(weight: Tensor, grad: Tensor, buffer: Tensor | None = None) -> Tensor:
        kept = None if buffer is None else buffer.double()
        return scalars.move(weight, grad.double() * sign, kept)

    return Rule((grad,) if buffer is None else (grad, buffer), compute)


def _adam(
    optimizer: torch.optim.Optimizer, before: Hyperparameters, state: Mapping[str, Any]
) -> Rule:
    second = "max_exp_avg_sq" if before.get("amsgrad") else "exp_avg_sq"
    scales = [_scale(state, name) for name in ("exp_avg", second)]
    step = int(state["step"] if "step" in state else _group_step(optimizer, before))
    if step < 1:
        raise NotMeasurableError(f"{type(optimizer).__name__} has counted no step")
    scalars = AdamScalars.of(
        before,
        step,
        decoupled=_decoupled(optimizer, before),
        corrected=before.get("bias_correction", True),
    )

    def compute(weight: Tensor, first: Tensor, second: Tensor) -> Tensor:
        m, v = (
            # A copy also of fp64, since moves are computed in place of the moments.
            (stored if scale is None else decode_scaled(stored, scale)).to(torch.float64, copy=True)
            for stored, scale in zip((first, second), scales, strict=True)
        )
        return scalars.move(weight, m, v)

    return Rule((state["exp_avg"], state[second]), compute)


def _scale(state: Mapping[str, Any], name: str) -> Tensor | None:
    scale: Tensor | None = state.get(scale_name(name))
    if scale is None and not state[name].is_floating_point():
        raise NotMeasurableError(f"{name} is {state[name].dtype} without {scale_name(name)}")
    return scale


def _group_step(optimizer: torch.optim.Optimizer, before: Hyperparameters) -> Any:
    """Return the step count, after this step, of a group that counts for all its parameters."""
    counts = all("step" in group for group in optimizer.param_groups)
    # Transformer Engine's FusedAdam gives its groups a count in the first step.
    count = before.get("step", 0 if counts else None)
    if not isinstance(count, (int, float, Tensor)):
        raise NotMeasurableError(f"{type(optimizer).__name__} counts no steps")
    return count + 1


def _decoupled(optimizer: torch.optim.Optimizer, before: Hyperparameters) -> bool:
    """Return whether an optimizer decays the weight itself, as AdamW, not through the gradient."""
    if not before["weight_decay"]:
        return False
    if "decoupled_weight_decay" in before:
        return bool(before["decoupled_weight_decay"])
    if hasattr(optimizer, "adam_w_mode"):
        return bool(optimizer.adam_w_mode)
    if isinstance(optimizer, optim.AnyPrecisionAdamW):
        return True
    raise NotMeasurableError(f"{type(optimizer).__name__} does not say where its weight decay goes")
