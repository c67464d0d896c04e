"""Name the known mistake, or the hyperparameters, that explain the wrong updates.

That is the wrong rules which fit all of them or, where none does, other options of the right one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from pytest_precision.recorders.oracle.batch import Batch
from pytest_precision.recorders.oracle.estimate import estimates, unknowns
from pytest_precision.recorders.oracle.plan import UpdatePlan
from pytest_precision.recorders.oracle.update import (
    Rounding,
    Roundings,
    ScalarsOfStep,
    UpdateScalars,
)
from pytest_precision.trace.oracle_log import OracleLog


def fit(
    plan: UpdatePlan, log: OracleLog, wrong: Sequence[Batch], right: Sequence[Batch], made: int
) -> None:
    """Log which known mistakes explain the wrong updates of this step and of all earlier ones.

    What the right rule explains need not be explained: a wrong rule may hold in one group.
    At the first of these steps, and where none fits, the options with which the right rule would
    are logged, too.

    Args:
        plan: what the workload declares.
        log: takes what explains them.
        wrong: batches of the step that break the rule.
        right: batches of the step that keep it.
        made: number of steps before.
    """
    alive = log.fits
    for batch in wrong:
        tried = _tried(plan, batch, made, alive)
        alive = [words for words in (tried if alive is None else alive) if tried.get(words)]
    if not alive or log.fits is None:
        _estimate(plan, log, wrong, made)
    for batch in right if alive else ():
        tried = _tried(plan, batch, made, alive)
        spared = {words for words, explains in tried.items() if not explains}
        log.spared = sorted(spared.union(log.spared))
    log.fits = alive or []


def _estimate(plan: UpdatePlan, log: OracleLog, wrong: Sequence[Batch], made: int) -> None:
    """Log, per parameter group, the hyperparameters that explain its wrong updates."""
    formula = plan.formula
    for batch in wrong:
        own, key = plan.at(made)[batch.group], str(batch.group)
        declared = unknowns(own, formula.numbers)
        found: dict[str, list[float]] = {}
        for values in estimates(own, formula.numbers, made + 1, formula.arithmetics[0], batch):
            parts = [(value, declared[one]) for one, value in values.items()]
            found[" ".join(values)] = [number for part in parts for number in part]
        # What is wrong may change from step to step: the first one is the one that is told.
        kept = log.estimates.get(key, found)
        log.estimates[key] = {name: kept[name] for name in kept if name in found}


def _tried(
    plan: UpdatePlan, batch: Batch, made: int, among: Sequence[str] | None
) -> dict[str, bool]:
    """Return for each known optimizer mistake, put in words, whether it explains an update."""
    tried: dict[str, bool] = {}
    for arithmetic in plan.formula.arithmetics:
        for wrong in _wrong_rules(plan, batch, made, arithmetic):
            words = wrong.words
            if (among is None or words in among) and not tried.get(words):
                tried[words] = _fits(batch, wrong)
    return tried


def _fits(batch: Batch, wrong: WrongRule) -> bool:
    storage, factors = wrong.storage(batch.storage), batch.clipping.forms
    if all(batch.worst(wrong.scalars, storage, wrong.factor * own) > 1 for own in factors):
        return False
    if wrong.rounded is None:
        return True
    held = batch.after[wrong.rounded]
    return torch.equal(held.to(wrong.dtype).to(held.dtype), held)


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
        """Compute an optimizer's rounding errors with this mistake from those without it."""
        if self.rounded is None:
            return own
        all_of_them = [*own.moments, own.weight]
        right, wrong = all_of_them[self.rounded], Rounding.of(self.dtype)
        coarser = Rounding(right.share + wrong.share, right.least + wrong.least, right.unit)
        all_of_them[self.rounded] = coarser
        *moments, weight = all_of_them
        return own._replace(moments=tuple(moments), weight=weight)


def _wrong_rules(
    plan: UpdatePlan, batch: Batch, made: int, arithmetic: ScalarsOfStep
) -> Iterator[WrongRule]:
    """Yield known optimizer mistakes that may explain a wrong update after `made` steps."""
    group, formula = batch.group, plan.formula
    own = plan.at(made)[group]
    for words, scalars in formula.wrong(own, made + 1, arithmetic, plan.full_rate(group)):
        yield WrongRule(words, scalars)
    yield from _rates(plan, group, made, arithmetic)
    right = arithmetic(own, made + 1)
    for number, name in enumerate((*formula.moments, "the weight")):
        place = number if number < len(formula.moments) else -1
        for dtype, coarse in ((torch.bfloat16, "bf16"), (torch.float16, "fp16")):
            yield WrongRule(f"{name} is rounded to {coarse}", right, place, dtype)
    if batch.clipping.wrong is not None:
        words, factor = batch.clipping.wrong
        yield WrongRule(words, right, factor=factor)


def _rates(
    plan: UpdatePlan, group: int, made: int, arithmetic: ScalarsOfStep
) -> Iterator[WrongRule]:
    """Yield mistaken rules: update with a neighbouring step's or another group's learning rate."""
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
