"""Wrong rules: the mistakes in optimizer steps that a wrong update is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from pytest_precision.recorders.oracle.plan import UpdatePlan
from pytest_precision.recorders.oracle.rounding import Rounding
from pytest_precision.recorders.oracle.update import Roundings, ScalarsOfStep, UpdateScalars


class WrongRule(NamedTuple):
    """An optimizer rule with a known mistake, which may explain a wrong update.

    Attributes:
        words: what is wrong, for the reader of a failure.
        scalars: the numbers of a step by it.
        rounded: number of the quantity that is rounded to `dtype` after the step: that of a moment,
            or -1 for the weight; None for none of them.
        dtype: a dtype below that of the quantity's storage.
        factor: of the gradient that the right rule would have read.
    """

    words: str
    scalars: UpdateScalars
    rounded: int | None = None
    dtype: torch.dtype = torch.float32
    factor: float = 1.0

    def storage(self, own: Roundings) -> Roundings:
        """Return how coarsely an optimizer with this mistake rounds its weight and moments."""
        if self.rounded is None:
            return own
        all_of_them = [*own.moments, own.weight]
        right, wrong = all_of_them[self.rounded], Rounding.of(self.dtype)
        coarser = Rounding(right.share + wrong.share, right.least + wrong.least, right.unit)
        all_of_them[self.rounded] = coarser
        *moments, weight = all_of_them
        return own._replace(moments=tuple(moments), weight=weight)


def wrong_rules(
    plan: UpdatePlan, group: int, made: int, arithmetic: ScalarsOfStep
) -> Iterator[WrongRule]:
    """Yield known optimizer mistakes that may explain a group's wrong update after `made` steps.

    Args:
        plan: what the workload declares.
        group: number of the group.
        made: number of steps before.
        arithmetic: how the scalars are computed.
    """
    own, formula = plan.at(made)[group], plan.formula
    for words, scalars in formula.wrong(own, made + 1, arithmetic, plan.full_rate(group)):
        yield WrongRule(words, scalars)
    yield from _rates(plan, group, made, arithmetic)
    right = arithmetic(own, made + 1)
    for number, name in enumerate((*formula.moments, "the weight")):
        place = number if number < len(formula.moments) else -1
        for dtype, coarse in ((torch.bfloat16, "bf16"), (torch.float16, "fp16")):
            yield WrongRule(f"{name} is rounded to {coarse}", right, place, dtype)


def _rates(
    plan: UpdatePlan, group: int, made: int, arithmetic: ScalarsOfStep
) -> Iterator[WrongRule]:
    """Yield, as mistakes, the learning rates of neighbouring steps and of other groups."""
    own = plan.at(made)[group]
    places = [(made + 1, group, "the next step")]
    if made:
        places.append((made - 1, group, "the step before"))
    others = (number for number in range(len(plan.at(made))) if number != group)
    places += [(made, number, "another parameter group") for number in others]
    for step, number, words in places:
        lr = plan.at(step)[number]["lr"]
        if lr != own["lr"]:
            scalars = arithmetic({**own, "lr": lr}, made + 1)
            yield WrongRule(f"the learning rate is that of {words}", scalars)
