"""Wrong rules: those that real optimizers have followed by mistake, to name the one that fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch

from pytest_precision.trace.oracle.adam import AdamScalars, Roundings, Scalars
from pytest_precision.trace.oracle.plan import UpdatePlan
from pytest_precision.trace.oracle.rounding import Rounding


class WrongRule(NamedTuple):
    """A rule that a workload has not declared.

    Attributes:
        words: what is wrong, for the reader of a failure.
        scalars: the numbers of a step by it.
        rounded: the quantity that is rounded to `dtype` after the step, or nothing.
        dtype: a dtype below that of the quantity's storage.
    """

    words: str
    scalars: AdamScalars
    rounded: str = ""
    dtype: torch.dtype = torch.float32

    def storage(self, own: Roundings) -> Roundings:
        """Return the roundings of a step by this rule."""
        if not self.rounded:
            return own
        right: Rounding = getattr(own, self.rounded)
        wrong = Rounding.of(self.dtype)
        coarser = Rounding(right.share + wrong.share, right.least + wrong.least, right.unit)
        return own._replace(**{self.rounded: coarser})


def wrong_rules(
    plan: UpdatePlan, group: int, made: int, arithmetic: Scalars
) -> Iterator[WrongRule]:
    """Yield the wrong rules for a group's step after `made` others.

    Args:
        plan: what the workload declares.
        group: number of the group.
        made: number of steps before.
        arithmetic: how the scalars are computed.
    """
    groups, decoupled = plan.at(made), plan.decoupled
    own, step = groups[group], made + 1
    right = arithmetic(own, step, decoupled=decoupled)
    yield WrongRule("eps is added inside the root", replace(right, eps_in_root=True))
    words = "weight decay is part of the gradient (L2), not decoupled"
    if not decoupled:
        words = "weight decay is decoupled, not part of the gradient (L2)"
    if own["weight_decay"]:
        yield WrongRule(words, arithmetic(own, step, decoupled=not decoupled))
        if right.decay:
            full = plan.full_rate(group) * own["weight_decay"]
            yield WrongRule(
                "weight decay is scaled by the full learning rate, not by the step's",
                replace(right, decay=full),
            )
        yield WrongRule("there is no weight decay", replace(right, decay=0.0, l2=0.0))
    yield WrongRule("moments are not corrected for bias", replace(right, corrections=(1.0, 1.0)))
    yield from _rates(plan, group, made, arithmetic)
    for other, which in ((step + 1, "one more"), (step - 1, "one less")):
        if other:
            scalars = arithmetic(own, other, decoupled=decoupled)
            yield WrongRule(f"steps are counted as {which} than were made", scalars)
    for field, words in (
        ("first", "the first moment is"),
        ("second", "the second moment is"),
        ("weight", "the weight is"),
    ):
        for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "fp16")):
            yield WrongRule(f"{words} rounded to {name}", right, field, dtype)


def _rates(plan: UpdatePlan, group: int, made: int, arithmetic: Scalars) -> Iterator[WrongRule]:
    """Yield the right rule at the rates of other steps and groups."""
    own = plan.at(made)[group]
    places = [(made + 1, group, "the next step")]
    if made:
        places.append((made - 1, group, "the step before"))
    others = (number for number in range(len(plan.at(made))) if number != group)
    places += [(made, number, "another parameter group") for number in others]
    for step, number, words in places:
        lr = plan.at(step)[number]["lr"]
        if lr != own["lr"]:
            scalars = arithmetic({**own, "lr": lr}, made + 1, decoupled=plan.decoupled)
            yield WrongRule(f"the learning rate is that of {words}", scalars)
