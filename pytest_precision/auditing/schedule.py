"""Horizon: over how many steps a scheduler spreads its rates, wherever it keeps that number."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

NAMES = (
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
    """Yield the numbers of steps that a scheduler, and those in it, were made with."""
    for part in (scheduler, *getattr(scheduler, "lr_lambdas", ())):
        known = part.keywords if isinstance(part, functools.partial) else vars(part)
        for name in NAMES:
            value = known.get(name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                yield name, int(value)
    for inner in getattr(scheduler, "_schedulers", ()):
        yield from horizons(inner)


def has_length(dataloader: Any) -> bool:
    """Return whether a loader knows its number of batches; one of an iterable dataset may not."""
    try:
        len(dataloader)
    except Exception:  # people's data sets raise whatever they like
        return False
    return True
