"""What an engine or a loop keeps beside its model and its optimizer."""

from __future__ import annotations

import torch
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, ReduceLROnPlateau

from pytest_precision.engine.further import policies


def stepped(scheduler: LRScheduler) -> dict[str, object]:
    """Step once more; return what is seen of a scheduler."""
    scheduler.optimizer.step()
    scheduler.step(*[1.0] * isinstance(scheduler, ReduceLROnPlateau))
    return dict(policies([scheduler]))


def test_rates_that_a_scheduler_tells_are_seen_where_they_are_stale() -> None:
    """They are saved and logged, but nothing is computed with them."""
    for kind, options in (
        (OneCycleLR, {"max_lr": 0.2, "total_steps": 10}),
        (ReduceLROnPlateau, {"patience": 0, "factor": 0.5}),
    ):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)
        scheduler = kind(optimizer, **options)
        told = scheduler.get_last_lr()
        name = f"stale rates of {kind.__name__}"
        assert [stepped(scheduler)[name] for _ in range(3)] == [False] * 3
        assert told != scheduler.get_last_lr()
        scheduler._last_lr = told
        assert dict(policies([scheduler]))[name] is True
