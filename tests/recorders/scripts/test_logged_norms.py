"""A norm that a loop computes for its log clips nothing, and the other side may go without it."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from checked import ParityIn, failed
from clipping_loop import SMALL, Clip, loop
from torch import nn
from torch.nn.utils import clip_grad_norm_

from pytest_precision import Cell, script

CELL = Cell(sequence="train2")
clipped = partial(clip_grad_norm_, max_norm=SMALL)


@script
def checked(cell: Any, record: Any, clip: Clip) -> None:
    """Train with a clip."""
    torch.manual_seed(0)
    loop(cell, record, clip)


def logged(held: list[nn.Parameter]) -> None:
    """Compute the norm for a log, and clip nothing."""
    clip_grad_norm_(held, math.inf)


def logged_first(held: list[nn.Parameter]) -> None:
    """Compute the norm for a log, and clip."""
    clip_grad_norm_(held, torch.tensor(math.inf))
    clip_grad_norm_(held, SMALL)


def never(held: list[nn.Parameter]) -> None:
    """Neither clip nor look at the norm."""


@pytest.mark.parametrize("log", [logged, logged_first])
def test_a_norm_that_one_side_logs_is_named(parity_there: ParityIn, log: Clip) -> None:
    """Nothing is clipped by it, whichever side it is, and that of a clip keeps its name."""
    other = clipped if log is logged_first else never
    for sides, lacking in (((log, other), "reference"), ((other, log), "candidate")):
        verdict = parity_there(CELL).check(*(partial(checked, clip=clip) for clip in sides))
        notes = {key: why for key, why in verdict.left_out.items() if "grad_norm" in key}
        assert [*notes.values()] == [f"the {lacking} has none"]


@pytest.mark.parametrize("other", [never, logged])
def test_a_clip_of_one_side_alone_is_red(parity_there: ParityIn, other: Clip) -> None:
    """Also where it clips nothing in these steps, and beside a norm that is logged."""
    sides = (
        partial(checked, clip=partial(clip_grad_norm_, max_norm=1e9)),
        partial(checked, clip=other),
    )
    if other is never:
        assert "grad_norm of total is missing" in failed(parity_there(CELL), *sides).reason
    small = partial(checked, clip=clipped)
    verdict = failed(parity_there(CELL), small, sides[1])
    assert verdict.divergence is not None
    assert verdict.divergence.kind == ("grad_norm" if other is never else "final_grad")


def test_norms_that_both_sides_log_are_compared(parity_there: ParityIn) -> None:
    """They are numbers of the step like any others."""
    verdict = parity_there(CELL).check(
        partial(checked, clip=logged), partial(checked, clip=partial(logged))
    )
    assert not [key for key in verdict.left_out if "grad_norm" in key]


def each(held: list[nn.Parameter]) -> None:
    """Clip twice, as a loop that clips after each microbatch."""
    clipped(held)
    clipped(held)


def test_how_often_a_step_clips_is_said(parity_there: ParityIn) -> None:
    """A loop that clips each microbatch does so more often than one that clips their sum."""
    verdict = failed(
        parity_there(CELL), partial(checked, clip=each), partial(checked, clip=clipped)
    )
    words = "In step 1 gradients were clipped 2 times, 1 time in the reference"
    assert words in "\n".join(verdict.details)
