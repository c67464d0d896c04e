"""Measure how much of each exact weight update was lost to rounding.

The exact update is computed in fp64 from the optimizer's own state after the step and the
hyperparameters before it, and compared with how the *effective* weight moved: on stored bf16
parameters a run with fp32 masters and one that loses nearly every update look alike. It costs one
copy of the effective weights per step, on the host. The results are kept next to the trace, as
counts and sums that add up over shards; agreement of the two sides does not depend on them.
`oracle/` judges the state, which is trusted here.

Sources: the formulas of `torch.optim.SGD` and `torch.optim.Adam(W)`; Transformer Engine's and
AnyPrecision's Adam are the same in exact arithmetic, whatever they store their moments in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from pytest_precision import optim
from pytest_precision.engine.groups import gradient, state_of
from pytest_precision.errors import NotMeasurableError
from pytest_precision.optim.scaled_state import decode_scaled, scale_name
from pytest_precision.probes.declared_rule.oracle import claims
from pytest_precision.probes.declared_rule.oracle.adam import ADAM_NUMBERS, AdamScalars
from pytest_precision.probes.declared_rule.oracle.sgd import SGD_NUMBERS, SgdScalars
from pytest_precision.probes.lost_updates.update_log import UpdateLog
from pytest_precision.probes.lost_updates.update_sums import Rule, Update, sums
from pytest_precision.recorders.weights import KeptWeights, Watched, Weight

Hyperparameters = Mapping[str, Any]
"""Those of a parameter group before the step: a scheduler may have changed them since."""


def rule(
    optimizer: torch.optim.Optimizer, before: Hyperparameters, parameter: Tensor, grad: Tensor
) -> Rule:
    """Return the `Rule` that computes a parameter's exact Adam or SGD update from its stored state.

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
        momentum = None if buffer is None else buffer.double()
        return scalars.move(weight, grad.double() * sign, momentum)

    operands = (grad,) if buffer is None else (grad, buffer)
    return Rule(operands, compute, (scalars, sign))


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

    alike = scalars if scales == [None, None] else None
    return Rule((state["exp_avg"], state[second]), compute, alike)


def _scale(state: Mapping[str, Any], name: str) -> Tensor | None:
    scale: Tensor | None = state.get(scale_name(name))
    if scale is None and not state[name].is_floating_point():
        raise NotMeasurableError(f"{name} is {state[name].dtype} without {scale_name(name)}")
    return scale


def _group_step(optimizer: torch.optim.Optimizer, before: Hyperparameters) -> Any:
    """Return a parameter group's step count after this step, which its parameters share."""
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
    words = "does not say whether its weight decay is decoupled, as in AdamW"
    raise NotMeasurableError(f"{type(optimizer).__name__} {words}")


class UpdateMeter:
    """Measures how much of each weight update rounding lost, on one rank, step by step.

    Attributes:
        kept: the weights as they were before an update.
    """

    def __init__(self) -> None:
        self.kept = KeptWeights()
        # Slot of each logical tensor's piece: its name, and its place as text that tells it apart.
        self._pieces: dict[tuple[str, str], int] = {}
        self._steps: list[tuple[int, list[tuple[float, ...]]]] = []
        self._unmeasured: dict[str, str] = {}

    @torch.no_grad()
    def before(self, optimizer: Optimizer, weights: Iterable[Weight]) -> list[Watched]:
        """Return CPU copies of the weights that `optimizer` is about to update.

        The copies lie in the same memory each time, so they last until the next step.
        """
        groups = {
            id(parameter): {
                key: value.clone() if isinstance(value, Tensor) else value
                for key, value in group.items()
                if key != "params"
            }
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        watched = []
        for weight in weights:
            grad = gradient(optimizer, weight.parameter)
            pieces = [] if grad is None else weight.pieces(weight.effective())
            before = [
                self.kept.before((weight.name, number), piece)
                for number, piece in enumerate(pieces)
            ]
            watched.append(Watched(weight, grad, groups[id(weight.parameter)], before))
        return watched

    @torch.no_grad()
    def after(self, optimizer: Optimizer, watched: Iterable[Watched], step: int) -> None:
        """Measure how far the weights moved in a step, against the exact update in fp64."""
        measured = [pair for watch in watched for pair in self._measured(optimizer, watch)]
        figures = sums([update for _, update in measured])
        rows = [
            (slot, int(updates), int(lost), *sizes)
            for (slot, _), (updates, lost, *sizes) in zip(measured, figures, strict=True)
        ]
        self._steps.append((step, rows))

    def write(self, folder: Path, rank: int) -> None:
        """Write this rank's measurements as JSON beside its trace."""
        part = {"pieces": [*self._pieces], "steps": self._steps, "unmeasured": self._unmeasured}
        UpdateLog.store(folder, rank, part)

    def _measured(self, optimizer: Optimizer, watched: Watched) -> Iterator[tuple[int, Update]]:
        weight = watched.weight
        if watched.grad is None:
            return
        try:
            exact = rule(optimizer, watched.group, weight.parameter, watched.grad)
        except NotMeasurableError as reason:
            self._unmeasured[weight.name] = str(reason)
            return
        columns = [weight.pieces(tensor) for tensor in (weight.effective(), *exact.operands)]
        for before, (shard, *operands) in zip(
            watched.before, zip(*columns, strict=True), strict=True
        ):
            tensors = (piece.tensor.reshape(-1) for piece in (shard, *operands))
            slot = self._pieces.setdefault((shard.name, repr(shard.place)), len(self._pieces))
            yield slot, Update(exact, before.reshape(-1), tuple(tensors))
