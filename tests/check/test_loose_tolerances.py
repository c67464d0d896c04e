"""A tolerance that a wrong optimizer passes is no proof of the right one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from pytest_precision import (
    Cell,
    Engine,
    Parity,
    ParityError,
    Workload,
    close,
    layouts,
    unchecked,
    workloads,
)

GUESSED = close(rtol=1e-4, atol=1e-5)
"""Looks strict, and is above every second moment of a small model."""

MOMENTS = {"default": GUESSED, "hyper": unchecked(reason="the decay is what the test is about")}
"""Leaves out the decay itself, which shows at the start of the run."""

FINE_TUNED = partial(workloads.mlp, lr=3e-4)


def forgets_sooner(workload: Workload, cell: Cell) -> Engine:
    """AdamW whose second moment forgets ten times as fast."""
    model = workload.model(cell)
    optimizer = torch.optim.AdamW(workload.groups(model), betas=(0.9, 0.99))
    return Engine(workload, cell, model, optimizer)


def test_a_wrong_decay_does_not_pass_by_a_tolerance_above_the_moment(
    parity_there: Callable[[Cell], Parity],
) -> None:
    """The moment is named, and the bound that it would take is left to the author."""
    words = r"vacuous: close\(rtol=0.0001, atol=1e-05\) allows exp_avg_sq of 100 % of \S+ to be any"
    with pytest.raises(ParityError, match=words):
        parity_there(Cell(sequence="train2")).check(
            forgets_sooner,
            layouts.adamw,
            workload=FINE_TUNED,
            criterion=MOMENTS,
            oracle=unchecked(reason="what the tolerance sees is the question"),
        )
