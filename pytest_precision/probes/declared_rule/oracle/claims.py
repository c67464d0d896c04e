"""Determine from an optimizer's class and options which update rule it should follow.

State says little: dozens of optimizers keep an `exp_avg` and an `exp_avg_sq`, each for a formula of
its own. So only classes with one of these names, and what derives from them, are judged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from inspect import signature, unwrap
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from pytest_precision.errors import NotMeasurableError

ADAM_CLASSES = ("AdamW", "Adam", "FusedAdam", "DeepSpeedCPUAdam", "AnyPrecisionAdamW", "_AdamW")
"""Names of classes with Adam's moments, whose options say where weight decay goes."""

SGD_CLASSES = ("SGD",)
"""Names of classes with a momentum buffer, or without."""

NEUTRAL = frozenset(
    {"foreach", "fused", "capturable", "differentiable", "set_grad_none", "use_decoupled_grad"}
    | {"adam_w_mode", "decoupled_weight_decay", "bias_correction", "nesterov"}
    | {"store_param_remainders", "master_weights", "bf16_stochastic_round", "fp32_optimizer_states"}
)
"""Switches that leave the rule as it is, or are part of it."""


def expect_claim(optimizer: Optimizer, names: Collection[str]) -> None:
    """Raise unless an optimizer's class, or a base of it, has the name of a known rule.

    A class that derives from one of these and has a `step` of its own is one of them as well, so
    that a mistake in it is found, unless it takes options of its own: they say that it means more.

    Args:
        optimizer: the optimizer to check.
        names: of classes with the rule.

    Raises:
        NotMeasurableError: if it does not.
    """
    kind: type = type(optimizer)  # not a class of optimizers, whose `__hash__` mypy looks at
    claimed = is_one_of(kind, names)
    if claimed is None:
        raise NotMeasurableError(
            f"{kind.__name__} may have a formula of its own: known are {', '.join(names)}"
        )
    more = _options(kind) - _options(claimed)
    if kind is not claimed and _step(kind) is not _step(claimed) and more:
        raise NotMeasurableError(
            f"{kind.__name__} overrides the step of {claimed.__name__}, and has further options: "
            f"{', '.join(sorted(more))}"
        )


def has_declared_class(optimizer: Optimizer) -> bool:
    """Return whether an optimizer's class has the name of a known rule, or derives from one."""
    return is_one_of(type(optimizer), ADAM_CLASSES + SGD_CLASSES) is not None


def is_one_of(kind: type, names: Collection[str]) -> type | None:
    """Return the first of a class and its bases whose name is in `names`; None if there is none."""
    return next((base for base in kind.__mro__ if base.__name__ in names), None)


def expect_numbers(optimizer: Optimizer, group: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise unless a parameter group has every hyperparameter that its update needs.

    Args:
        optimizer: whose group it is.
        group: the options.
        names: of the rule's numbers.

    Raises:
        NotMeasurableError: if one is missing, or is none.
    """
    kind = type(optimizer).__name__
    without = [name for name in names if name not in group]
    if without:
        raise NotMeasurableError(f"{kind} follows another rule: it has no {', no '.join(without)}")
    for name in names:
        if not _measurable(name, group[name]):
            raise NotMeasurableError(
                f"{kind} follows another rule: its {name} is {group[name]!r}, not "
                + ("two numbers" if name == "betas" else "a number")
            )


def expect_plain(optimizer: Optimizer, group: Mapping[str, Any]) -> None:
    """Raise if an option of a parameter group changes the update formula, as `amsgrad` does.

    Raises:
        NotMeasurableError: if one does.
    """
    kind = type(optimizer).__name__
    switches = {name for name in group.keys() & optimizer.defaults.keys() if group[name] is True}
    if group.get("bias_correction") is False:
        raise NotMeasurableError(f"{kind} has bias_correction=False, which no known rule has")
    for name in sorted(switches - NEUTRAL):
        raise NotMeasurableError(f"{kind} has {name}=True, which no known rule has")


def _measurable(name: str, value: Any) -> bool:
    if name == "betas":
        pair = isinstance(value, (tuple, list)) and len(value) == 2
        return pair and all(_measurable("", beta) for beta in value)
    return value.numel() == 1 if isinstance(value, Tensor) else hasattr(value, "__float__")


def _step(kind: type) -> Any:
    return unwrap(kind.step) if hasattr(kind, "step") else None


# Asked for each weight in each step, and a signature takes as long as a small update.
@lru_cache(maxsize=64)
def _options(kind: type) -> frozenset[str]:
    """Return the names of an optimizer class's constructor arguments after the first (`params`)."""
    _, *names = signature(kind).parameters.values()
    named = (
        parameter
        for parameter in names
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    )
    return frozenset(parameter.name for parameter in named)
