"""Find updates that are far larger or smaller than the rate of a known rule allows.

Adam moves an element by about its rate, in the first step by just that, whatever the gradient's
size. Muon moves a matrix by a rotation, the norm of which the shape says. States of eight bits that
round to zero make an update of a thousand times that; a gradient so small that a constant for
safety outweighs it makes one of a hundredth. An element without a gradient moves by its decay.

The first updates of each optimizer are judged, on a part of each tensor, unless a rule that the
run declares says what each must be.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from pytest_precision._torch.training import has_own_step_hooks
from pytest_precision.engine.groups import group_members, state_of
from pytest_precision.probes.by_itself.run_judge import JudgedRun
from pytest_precision.probes.by_itself.update_judge import UpdateJudge, some_of
from pytest_precision.probes.by_itself.update_rules import UpdateRule, rule_of

JUDGED_UPDATES = 6
"""Updates of an optimizer that are judged."""

JUDGED_TENSORS = 64
"""Tensors of an optimizer that are judged."""


class Before(NamedTuple):
    """A tensor before an update.

    Attributes:
        parameter: the tensor.
        values: some of its elements.
        gradient: those of its gradient.
        rule: what its class says of it.
        is_first: whether the optimizer has no state of it.
    """

    parameter: Tensor
    values: Tensor
    gradient: Tensor
    rule: UpdateRule
    is_first: bool


class UpdateSizes(UpdateJudge):
    """Finds updates of Adam and Muon that are far from what their rate allows."""

    rule: ClassVar[str] = "update_size"
    kind: ClassVar[str] = "master"
    watched: ClassVar[int] = JUDGED_UPDATES

    def __init__(self, run: JudgedRun) -> None:
        super().__init__(run)
        self._before: dict[Optimizer, list[Before]] = {}

    def begins(self, optimizer: Optimizer) -> None:
        """Keep a part of what a known optimizer updates."""
        before = self._before[optimizer] = []
        if has_own_step_hooks(optimizer) or self.run.declares_updates(optimizer):
            return
        for group, parameters in group_members(optimizer):
            for parameter in parameters[: JUDGED_TENSORS - len(before)]:
                rule = rule_of(optimizer, group, parameter)
                if rule is None or parameter.grad is None:
                    continue
                values, gradient = (some_of(part).clone() for part in (parameter, parameter.grad))
                is_first = not state_of(optimizer, parameter)
                if values.shape == gradient.shape:
                    before.append(Before(parameter, values, gradient, rule, is_first))

    def ended(self, optimizer: Optimizer) -> None:
        """Judge how far each tensor has moved; one whose values are not finite is no matter."""
        # A fused optimizer skips a step by itself whose gradients are not finite.
        skipped = getattr(optimizer, "found_inf", None) is not None
        for row in self._before.pop(optimizer, []):
            moved = some_of(row.parameter).double() - row.values.double()
            if moved.isfinite().all() and row.gradient.isfinite().all():
                self._judge(row, moved, may_skip=skipped)

    def _judge(self, row: Before, moved: Tensor, *, may_skip: bool) -> None:
        rule, values, gradient = row.rule, row.values.double().abs(), row.gradient.double()
        rounding = torch.finfo(row.values.dtype).eps * values
        without = gradient == 0
        free = moved.abs() - 1.01 * rule.decays * values - 2 * rounding
        if row.is_first and rule.moves_by_gradient and bool((free[without] > 0).any()):
            self.find(
                "{name} moved at step {step} by more than its weight decay where its gradient is 0",
                row.parameter,
            )
        elif bool((free > rule.most).any()):
            words = f"more than {rule.times_most:g} times what {rule.name} moves by at its rate"
            self.find(f"{{name}} moved at step {{step}} by {words}", row.parameter)
        elif row.is_first and not may_skip and _is_small(row, moved):
            words = f"less than a hundredth of what {rule.name} moves by at its rate"
            self.find(f"{{name}} moved at step {{step}} by {words}", row.parameter)


def _is_small(row: Before, moved: Tensor) -> bool:
    """Return whether the first update of a tensor is below what its rule makes of any gradient.

    Rounding of what is stored is no part of it, nor is a gradient as small as the rule's epsilon.
    """
    rule, values = row.rule, row.values.double()
    telling = row.gradient.double().abs() > rule.telling
    stored = row.values.dtype == torch.float32
    if not telling.any() or not stored or rule.expected < 1e-5 * float(values.abs().max()):
        return False
    without_decay = moved + rule.decays * values
    roots = (float(part[telling].square().mean().sqrt()) for part in (moved, without_decay))
    return min(roots) < rule.expected / 100
