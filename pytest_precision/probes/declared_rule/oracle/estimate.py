"""Find the hyperparameters (lr, betas) that explain an update which breaks the rule.

Moments and weights before and after a step are many equations for few unknowns. One option of the
rule, or two, is fitted to them by Gauss-Newton, each equation weighted by the bound of its
rounding, and counts only if the rule with it then explains the whole step within these bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pytest_precision.probes.declared_rule.oracle.batch import Batch
from pytest_precision.probes.declared_rule.oracle.update import ScalarsOfStep

GRADIENT = "gradient"
"""The unknown that is no option of a rule: a factor of all gradients."""

ROUNDS = 8
"""Rounds of a fit: an update is linear in all but an eps, or nearly so."""

UNMOVED = 1e-9
"""Share of its value by which an option must move in a round for another round to be made: far less
than any rounding makes of an update."""

SIZES = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""Values from the nearest of which an eps is looked for: one that is too small about doubles in
each round."""

WITHIN = 2.0
"""Bounds within which a fitted rule must explain an update: the fit itself carries rounding."""

BETWEEN = {"betas.0": (0.0, 0.99999), "betas.1": (0.0, 0.9999999), "momentum": (0.0, 0.99999)}
"""Limits of options that are shares."""

TOGETHER = (("lr", "weight_decay"), ("betas.0", "betas.1"))
"""Options that are wrong together, as where a caller's are not taken over."""


def estimates(
    group: Mapping[str, Any],
    numbers: Sequence[str],
    step: int,
    arithmetic: ScalarsOfStep,
    batch: Batch,
) -> Iterator[dict[str, float]]:
    """Yield the values of one or two hyperparameters that explain an update of some weights.

    Args:
        group: the declared options.
        numbers: names of those that the rule has.
        step: the count of steps that the step makes.
        arithmetic: makes the scalars of a step.
        batch: of a group, that the declared rule does not explain.
    """
    options = unknowns(group, numbers)
    fitted = False
    singles = [(name,) for name in options]
    pairs = [pair for pair in TOGETHER if all(name in options for name in pair)]
    for names in (*singles, *pairs):
        if len(names) > 1 and fitted:
            return
        values = _fit({name: options[name] for name in names}, group, step, arithmetic, batch)
        if values is not None:
            fitted = True
            yield values


def unknowns(group: Mapping[str, Any], numbers: Sequence[str]) -> dict[str, float]:
    """Return a group's declared hyperparameters by name; a pair is split, as into `betas.0`.

    The factor of its gradients, `GRADIENT`, is one of them.
    """
    options: dict[str, float] = {}
    for name in numbers:
        if isinstance(group[name], (tuple, list)):
            options |= {f"{name}.{number}": float(part) for number, part in enumerate(group[name])}
        elif not isinstance(group[name], bool):
            options[name] = float(group[name])
    return options | {GRADIENT: 1.0}


def _changed(group: Mapping[str, Any], values: Mapping[str, float]) -> dict[str, Any]:
    """Return a parameter group's hyperparameters with some of their values replaced."""
    options = dict(group)
    for name, value in values.items():
        option, _, number = name.partition(".")
        if number:
            parts = list(options[option])
            parts[int(number)] = value
            options[option] = tuple(parts)
        elif name != GRADIENT:
            options[option] = value
    return options


def _fit(
    declared: Mapping[str, float],
    group: Mapping[str, Any],
    step: int,
    arithmetic: ScalarsOfStep,
    batch: Batch,
) -> dict[str, float] | None:
    """Fit the hyperparameters named in `declared` to an update; None if no values explain it."""

    def update_by(values: Mapping[str, float]) -> tuple[Tensor, Tensor] | None:
        scalars = arithmetic(_changed(group, values), step)
        exact, bound = batch.exact_state(scalars, values.get(GRADIENT, 1.0))
        return (exact, bound) if bool(exact.isfinite().all()) else None

    run_state = batch.run_state
    values = dict(declared)
    if [*values] == ["eps"]:
        sizes = (values["eps"], *SIZES)
        values["eps"] = min(sizes, key=lambda eps: _distance(run_state, update_by({"eps": eps})))
    for _ in range(ROUNDS):
        update = update_by(values)
        if update is None:
            return None
        exact, bound = update
        error = (run_state - exact).div_(bound).nan_to_num_(0.0)
        if float(error.abs().max()) <= WITHIN:
            return values
        columns = []
        for name, value in values.items():
            least = 1e-4 * abs(declared[name]) or 1e-4
            by = least if abs(value) < least else 1e-4 * abs(value)
            moved = update_by({**values, name: value + by})
            if moved is None:
                return None
            # By the same bounds, which change with a rate, too.
            columns.append((exact - moved[0]).div_(bound).nan_to_num_(0.0) / by)
        jacobian = torch.stack(columns, 1)
        solved = torch.linalg.lstsq(jacobian, -error.unsqueeze(1)).solution.reshape(-1)
        if not bool(solved.isfinite().all()):
            return None
        steps = zip(values.items(), solved.tolist(), strict=True)
        moved_to = {name: _limited(name, value + by) for (name, value), by in steps}
        if all(
            abs(moved_to[name] - value) <= UNMOVED * abs(value) for name, value in values.items()
        ):
            return None  # no further round would find other values
        values = moved_to
    return None


def _limited(name: str, value: float) -> float:
    """Return the valid value of an option that is nearest to `value`."""
    low, high = BETWEEN.get(name, (0.0, float("inf")))
    return value if name in ("lr", GRADIENT) else min(max(value, low), high)


def _distance(run_state: Tensor, update: tuple[Tensor, Tensor] | None) -> float:
    """Return the L2 norm of an update's errors, each as a share of its rounding bound."""
    if update is None:
        return float("inf")
    exact, bound = update
    return float((run_state - exact).div_(bound).nan_to_num_(0.0).norm())
