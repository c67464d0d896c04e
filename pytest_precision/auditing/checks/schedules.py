"""Check for learning-rate schedulers of another optimizer, or of unlimited length.

A trainer that computes the number of steps from the length of its data has none for an iterable
dataset, and some put the largest integer in its place: the rate then never decays.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Iterator
from typing import Any

from pytest_precision.auditing.facts import SetupFacts
from pytest_precision.auditing.finding import AuditFinding
from pytest_precision.auditing.optimizer_facts import Holder

ENDLESS = 2**31
"""Steps that no training makes."""


def endless_schedules(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield an error for each learning-rate schedule so long that its rate never decays."""
    lacking = [
        type(dataloader).__name__
        for dataloader in facts.setup.dataloaders
        if not has_length(dataloader)
    ]
    why = f", and {lacking[0]} has no length to compute it from" if lacking else ""
    for scheduler in facts.setup.schedulers:
        for name, steps in horizons(scheduler):
            if steps >= ENDLESS:
                yield AuditFinding(
                    "endless-schedule",
                    "error",
                    f"{type(scheduler).__name__} has {name}={steps}: its rate never decays{why}",
                    "give the number of steps that you train",
                    (type(scheduler).__name__,),
                )


def unknown_length(error: BaseException) -> AuditFinding | None:
    """Return a finding for the error that a data loader has no length; None for other errors.

    Args:
        error: raised while the set-up was built, `TypeError` by Python or whatever a data set has.
    """
    function_names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]
    if "__len__" not in function_names:
        return None
    return AuditFinding(
        "length-unknown",
        "error",
        f"the set-up asks for the length of data that have none ({error})",
        "give the number of steps that you train, in the place of one computed from the data",
    )


def other_optimizer(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield an error for each scheduler whose optimizer is none of those that the loop uses."""
    groups = {id(g) for holder in facts.ownership.holders for g in holder.optimizer.param_groups}
    for scheduler in facts.setup.schedulers:
        if groups.isdisjoint(map(id, _groups(scheduler))):
            yield AuditFinding(
                "schedules-another",
                "error",
                f"{type(scheduler).__name__} sets the rates of an optimizer that is none of these",
                "make the scheduler after the optimizer, and from it",
                (type(scheduler).__name__,),
            )


def schedules_behind(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield a warning for each scheduler that stands at 0 beside an optimizer that has stepped on.

    After one step it may be yet to follow.
    """
    for scheduler in facts.setup.schedulers:
        inner = getattr(scheduler, "scheduler", scheduler)
        steps = max(map(steps_made, _holders(inner)), default=0)
        if steps > 1 and getattr(inner, "last_epoch", None) == 0:
            yield AuditFinding(
                "schedule-behind",
                "warning",
                f"{type(scheduler).__name__} is at step 0 beside an optimizer at step {steps}: its "
                "rates begin anew",
                "load its state as well, unless it steps by epochs and none is over",
                (type(scheduler).__name__,),
            )


def steps_made(holder: Holder) -> int:
    """Return how many steps an optimizer has counted in its state; 0 if it counts none."""
    states = (state for state in holder.optimizer.state.values() if isinstance(state, dict))
    return max((int(state["step"]) for state in states if "step" in state), default=0)


def _holders(scheduler: Any) -> Iterator[Holder]:
    optimizer = getattr(scheduler, "optimizer", None)
    if hasattr(optimizer, "param_groups"):
        yield from Holder.of(optimizer)


def _groups(scheduler: Any) -> Iterator[Any]:
    # Accelerate's has the scheduler in it, and a list of optimizers beside it.
    for holder in _holders(getattr(scheduler, "scheduler", scheduler)):
        yield from holder.optimizer.param_groups


HORIZON_NAMES = (
    "T_max",
    "total_steps",
    "total_iters",
    "lr_decay_steps",
    "wsd_decay_steps",
    "max_steps",
    "num_training_steps",
)
"""Attributes of schedulers, and arguments of the functions in them."""


def horizons(scheduler: Any) -> Iterator[tuple[str, int]]:
    """Yield (name, number) for each total number of steps given to a scheduler or one inside it."""
    for part in (scheduler, *getattr(scheduler, "lr_lambdas", ())):
        arguments = part.keywords if isinstance(part, functools.partial) else vars(part)
        for name in HORIZON_NAMES:
            value = arguments.get(name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                yield name, int(value)
    for inner in getattr(scheduler, "_schedulers", ()):
        yield from horizons(inner)


def has_length(dataloader: Any) -> bool:
    """Return whether a data loader knows its number of batches."""
    try:
        len(dataloader)
    except Exception:  # people's data sets raise whatever they like
        return False
    return True
