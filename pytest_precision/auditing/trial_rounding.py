"""Measure on copies how much of an optimizer's updates is rounded away below fp32.

An optimizer that rounds stochastically makes two steps of one and the same, by two random states.
What a step in fp32 moves, and the same step as the tensor is stored does not, is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pytest_precision.auditing.optimizer_facts import Holder
from pytest_precision.auditing.trial_step import sample, trial_step

TRIED_RATES = (1.0, 2.0**6, 2.0**12)
"""Factors of the rate at which two steps are compared: at too small a rate neither moves."""

SMALL_DECAY = 2.0**-11
"""Share of a weight by which it decays in a trial: a fourth of what rounding to nearest moves."""

LEAST_PROGRESS = 0.5
"""Share of that decay that stochastic rounding makes on average of many elements, at least."""

SCALE_FREE = 0.05
"""Relative difference up to which two updates are one, whatever the size of gradients."""


@dataclass(frozen=True)
class TrialRounding:
    """What becomes of an optimizer's updates of a tensor below fp32.

    Attributes:
        stochastic: whether it rounds at random.
        lost: share of the elements that its update does not move; None where that depends on the
            size of gradients.
        decay_lost: whether its weight decay moves too little.
    """

    stochastic: bool
    lost: float | None
    decay_lost: bool

    @classmethod
    def of(cls, holder: Holder, group: Mapping[str, Any], tensor: Tensor) -> TrialRounding | None:
        """Try an optimizer on copies of a tensor; return None if that shows nothing."""
        start = sample(tensor)
        if start is None:
            return None
        generator = torch.Generator().manual_seed(0)
        gradient = torch.randn(start.shape, generator=generator).to(start.device)
        if trial_step(holder, group, start, gradient) is None:
            return None
        return cls(
            any(_is_random(holder, group, start, gradient, rate) for rate in TRIED_RATES),
            _share_lost(holder, group, start, gradient),
            _loses_decay(holder, group, start),
        )


def _is_random(
    holder: Holder, group: Mapping[str, Any], start: Tensor, gradient: Tensor, rate: float
) -> bool:
    """Return whether two steps of one and the same end apart."""
    first_trial_step, other_trial_step = (
        trial_step(holder, group, start, gradient, rate=rate, seed=seed) for seed in (0, 1)
    )
    return (
        first_trial_step is not None
        and other_trial_step is not None
        and not torch.equal(first_trial_step.end, other_trial_step.end)
    )


def _share_lost(
    holder: Holder, group: Mapping[str, Any], start: Tensor, gradient: Tensor
) -> float | None:
    """Return the share of updates that leave their element as it is; None if it is unknown."""
    stored_trial_step = trial_step(holder, group, start, gradient)
    wide_trial_step = trial_step(holder, group, start.float(), gradient)
    larger = trial_step(holder, group, start.float(), gradient * 8)
    if (
        stored_trial_step is None
        or wide_trial_step is None
        or larger is None
        or not bool(wide_trial_step.moved.any())
    ):
        return None
    if torch.equal(
        wide_trial_step.end, wide_trial_step.end.to(start.dtype).float()
    ):  # it rounds whatever it is given
        return None
    if (larger.moved - wide_trial_step.moved).norm() > SCALE_FREE * wide_trial_step.moved.norm():
        return None
    updated = wide_trial_step.moved != 0
    return float(((stored_trial_step.moved == 0) & updated).sum() / updated.sum())


def _loses_decay(holder: Holder, group: Mapping[str, Any], start: Tensor) -> bool:
    """Return whether a decay that rounding to nearest loses is lost, where no gradient moves."""
    per_step = group.get("lr", 0.0) * group.get("weight_decay", 0.0)
    if per_step <= 0:
        return False
    zero = torch.zeros_like(start)
    trial = trial_step(holder, group, start, zero, rate=SMALL_DECAY / per_step)
    if trial is None:
        return False
    progress = -(trial.moved * start.double().sign()).sum()
    return bool(progress < LEAST_PROGRESS * SMALL_DECAY * start.double().abs().sum())
