"""Fitted rules: name the known mistake, or hyperparameters, that explain the wrong updates.

That is the wrong rules which fit all of them or, where none does, other options of the right one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pytest_precision.recorders.oracle.batch import Batch
from pytest_precision.recorders.oracle.estimate import declared, estimates
from pytest_precision.recorders.oracle.judge import Judge
from pytest_precision.recorders.oracle.wrong import WrongRule, wrong_rules


def fit(judge: Judge, batches: Sequence[Batch], made: int) -> None:
    """Log which known mistakes explain the wrong updates of this step and of all earlier ones.

    What the right rule explains need not be explained: a wrong rule may hold in one group.
    At the first of these steps, and where none fits, the options with which the right rule would
    are logged, too.

    Args:
        judge: has found the breaches.
        batches: of the step.
        made: number of steps before.
    """
    log = judge.log
    wrong = [batch for batch in batches if not _right(judge, batch, made)]
    alive = log.fits
    for batch in wrong:
        tried = _tried(judge, batch, made, alive)
        alive = [words for words in (tried if alive is None else alive) if tried.get(words)]
    if not alive or log.fits is None:
        _estimate(judge, wrong, made)
    for batch in batches if alive else ():
        if all(batch is not one for one in wrong):
            tried = _tried(judge, batch, made, alive)
            spared = {words for words, explains in tried.items() if not explains}
            log.spared = sorted(spared.union(log.spared))
    log.fits = alive or []


def _estimate(judge: Judge, wrong: Sequence[Batch], made: int) -> None:
    """Log, per parameter group, the hyperparameters that explain its wrong updates."""
    formula = judge.plan.formula
    for batch in wrong:
        own, key = judge.plan.at(made)[batch.group], str(batch.group)
        found: dict[str, list[float]] = {}
        for values in estimates(own, formula.numbers, made + 1, formula.arithmetics[0], batch):
            name = " ".join(values)
            parts = [(value, declared(own, one)) for one, value in values.items()]
            found[name] = [number for part in parts for number in part]
        # What is wrong may change from step to step: the first one is the one that is told.
        kept = judge.log.estimates.get(key, found)
        judge.log.estimates[key] = {name: kept[name] for name in kept if name in found}


def _right(judge: Judge, batch: Batch, made: int) -> bool:
    ways = judge.ways(batch, made)
    return any(batch.worst(own, batch.storage, factor) <= 1 for own, factor in ways)


def _tried(judge: Judge, batch: Batch, made: int, among: Sequence[str] | None) -> dict[str, bool]:
    """Return, for each known optimizer mistake in words, whether it explains an update."""
    tried: dict[str, bool] = {}
    for arithmetic, right in zip(
        judge.plan.formula.arithmetics, judge.scalars(batch.group, made), strict=True
    ):
        rules = [*wrong_rules(judge.plan, batch.group, made, arithmetic)]
        if batch.clipping.wrong is not None:
            words, factor = batch.clipping.wrong
            rules.append(WrongRule(words, right, factor=factor))
        for wrong in rules:
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
