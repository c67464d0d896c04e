"""Name the known mistake, or the hyperparameters, that explain the wrong updates.

That is the wrong rules which fit all of them or, where none does, other options of the right one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from pytest_precision.probes.declared_rule.oracle.batch import Batch
from pytest_precision.probes.declared_rule.oracle.estimate import estimates, unknowns
from pytest_precision.probes.declared_rule.oracle.plan import UpdatePlan
from pytest_precision.probes.declared_rule.oracle.update import (
    Rounding,
    Roundings,
    ScalarsOfStep,
    UpdateScalars,
)
from pytest_precision.probes.declared_rule.oracle_log import OracleLog


def fit(
    plan: UpdatePlan,
    log: OracleLog,
    wrong: Sequence[Batch],
    right: Sequence[Batch],
    steps_done: int,
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
        steps_done: number of steps before.
    """
    alive = log.fits
    for batch in wrong:
        tried = _tried(plan, batch, steps_done, alive)
        alive = [words for words in (tried if alive is None else alive) if tried.get(words)]
    if not alive or log.fits is None:
        _estimate(plan, log, wrong, steps_done)
    for batch in right if alive else ():
        tried = _tried(plan, batch, steps_done, alive)
        spared = {words for words, explains in tried.items() if not explains}
        log.spared = sorted(spared.union(log.spared))
    log.fits = alive or []


def _estimate(plan: UpdatePlan, log: OracleLog, wrong: Sequence[Batch], steps_done: int) -> None:
    """Log, per parameter group, the hyperparameters that explain its wrong updates."""
    formula = plan.formula
    for batch in wrong:
        options, key = plan.at(steps_done)[batch.group], str(batch.group)
        declared = unknowns(options, formula.numbers)
        estimated: dict[str, list[float]] = {}
        for values in estimates(
            options, formula.numbers, steps_done + 1, formula.arithmetics[0], batch
        ):
            parts = [(value, declared[name]) for name, value in values.items()]
            estimated[" ".join(values)] = [number for part in parts for number in part]
        # What is wrong may change from step to step: the first one is the one that is told.
        first_values = log.estimates.get(key, estimated)
        log.estimates[key] = {
            name: first_values[name] for name in first_values if name in estimated
        }


def _tried(
    plan: UpdatePlan, batch: Batch, steps_done: int, among: Sequence[str] | None
) -> dict[str, bool]:
    """Return for each known optimizer mistake, put in words, whether it explains an update."""
    tried: dict[str, bool] = {}
    for arithmetic in plan.formula.arithmetics:
        for wrong in _wrong_rules(plan, batch, steps_done, arithmetic):
            words = wrong.words
            if (among is None or words in among) and not tried.get(words):
                tried[words] = _fits(batch, wrong)
    return tried


def _fits(batch: Batch, wrong: WrongRule) -> bool:
    storage, factors = wrong.storage(batch.storage), batch.clipping.forms
    if all(batch.worst(wrong.scalars, storage, wrong.factor * form) > 1 for form in factors):
        return False
    if wrong.rounded is None:
        return True
    quantity = batch.after[wrong.rounded]
    return torch.equal(quantity.to(wrong.dtype).to(quantity.dtype), quantity)


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

    def storage(self, roundings: Roundings) -> Roundings:
        """Compute an optimizer's rounding errors with this mistake from those without it."""
        if self.rounded is None:
            return roundings
        all_of_them = [*roundings.moments, roundings.weight]
        right, wrong = all_of_them[self.rounded], Rounding.of(self.dtype)
        coarser = Rounding(right.share + wrong.share, right.least + wrong.least, right.unit)
        all_of_them[self.rounded] = coarser
        *moments, weight = all_of_them
        return roundings._replace(moments=tuple(moments), weight=weight)


def _wrong_rules(
    plan: UpdatePlan, batch: Batch, steps_done: int, arithmetic: ScalarsOfStep
) -> Iterator[WrongRule]:
    """Yield known optimizer mistakes that may explain a wrong update after `steps_done` steps."""
    group, formula = batch.group, plan.formula
    options = plan.at(steps_done)[group]
    for words, scalars in formula.wrong(options, steps_done + 1, arithmetic, plan.full_rate(group)):
        yield WrongRule(words, scalars)
    yield from _rates(plan, group, steps_done, arithmetic)
    right = arithmetic(options, steps_done + 1)
    for number, name in enumerate((*formula.moments, "the weight")):
        place = number if number < len(formula.moments) else -1
        for dtype, coarse in ((torch.bfloat16, "bf16"), (torch.float16, "fp16")):
            yield WrongRule(f"{name} is rounded to {coarse}", right, place, dtype)
    if batch.clipping.wrong is not None:
        words, factor = batch.clipping.wrong
        yield WrongRule(words, right, factor=factor)


def _rates(
    plan: UpdatePlan, group: int, steps_done: int, arithmetic: ScalarsOfStep
) -> Iterator[WrongRule]:
    """Yield mistaken rules: update with a neighbouring step's or another group's learning rate."""
    options = plan.at(steps_done)[group]
    places = [(steps_done + 1, group, "the next step")]
    if steps_done:
        places.append((steps_done - 1, group, "the step before"))
    others = (number for number in range(len(plan.at(steps_done))) if number != group)
    places += [(steps_done, number, "another parameter group") for number in others]
    for step, number, words in places:
        lr = plan.at(step)[number]["lr"]
        if lr != options["lr"]:
            scalars = arithmetic({**options, "lr": lr}, steps_done + 1)
            yield WrongRule(f"the learning rate is that of {words}", scalars)
