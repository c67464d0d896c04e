"""What the class of an optimizer says about the size of its updates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from pytest_precision._torch.distributed import is_dtensor

ADAM = re.compile(r"_?(Fused|Paged|CPU|DeepSpeedCPU|AnyPrecision)?Adam(W)?(_?(8|4|32)bit|Fp8)?")
"""Names of classes with Adam's rule, whatever their states are stored in."""

MUON = re.compile(r"(Single|Dist|Distributed|SingleDevice)?Muon")
"""Names of classes with Muon's rule."""

TIMES_ADAM = 50.0
"""How much more than its rate an element may move by Adam, which makes at most 10 of a spike."""

TIMES_MUON = 100.0
"""The same of Muon, whose factor for a shape several conventions give."""


class UpdateRule(NamedTuple):
    """How far a tensor may move in one update.

    Attributes:
        name: of the rule.
        expected: what an element moves by, as the root of the mean square.
        times_most: how much more than its rate an element may move.
        most: what an element may move by at most, without decay.
        decays: share of an element that decay may take.
        moves_by_gradient: whether an element without a gradient moves by decay alone.
        telling: size of a gradient from which the rule's constants do not matter.
    """

    name: str
    expected: float
    times_most: float
    most: float
    decays: float
    moves_by_gradient: bool
    telling: float


def rule_of(optimizer: Optimizer, group: Mapping[str, Any], parameter: Tensor) -> UpdateRule | None:
    """Return the rule for a tensor of an optimizer; None where its class says nothing of it."""
    kind = type(optimizer).__name__
    local_tensor = parameter.to_local() if is_dtensor(parameter) else parameter
    plain = type(local_tensor) in (Tensor, nn.Parameter)
    gradient = parameter.grad
    if not plain or gradient is None or gradient.is_sparse or not parameter.numel():
        return None
    if not parameter.is_floating_point() or gradient.layout != parameter.layout:
        return None
    rate, decay = (_number(group.get(name)) for name in ("lr", "weight_decay"))
    if rate is None or rate <= 0:
        return None
    if ADAM.fullmatch(kind):
        return _adam(kind, group, rate, decay or 0.0)
    if MUON.fullmatch(kind) and parameter.ndim == 2 and group.get("use_muon", True):
        return _muon(parameter, rate, decay or 0.0)
    return None


def _adam(kind: str, group: Mapping[str, Any], rate: float, decay: float) -> UpdateRule:
    decoupled = "AdamW" in kind or bool(group.get("decoupled_weight_decay"))
    eps = _number(group.get("eps"))
    return UpdateRule(
        name="Adam",
        expected=rate,
        times_most=TIMES_ADAM,
        most=TIMES_ADAM * rate,
        decays=rate * decay,
        moves_by_gradient=decoupled or not decay,
        telling=1e3 * (1e-8 if eps is None else eps),
    )


def _muon(parameter: Tensor, rate: float, decay: float) -> UpdateRule:
    rows, columns = parameter.shape
    expected = rate * max(rows, columns) ** -0.5
    return UpdateRule(
        name="Muon",
        expected=expected,
        times_most=TIMES_MUON,
        most=TIMES_MUON * rate,
        decays=rate * decay,
        moves_by_gradient=False,
        telling=0.0,
    )


def _number(value: Any) -> float | None:
    """Return a number, or a tensor of one, as a float; None for anything else."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
