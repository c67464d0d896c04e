"""A choice that flips is the first divergence, in words, whatever the tolerance."""

from __future__ import annotations

from collections.abc import Callable

import planted
import pytest

from pytest_precision import Cell, Parity, ParityError, close, layouts, workloads
from pytest_precision.parity.compare.criterion import Criterion

ParityIn = Callable[[Cell], Parity]


@pytest.mark.parametrize("criterion", [None, close(rtol=0.5, atol=0.5)], ids=str)
def test_a_token_that_goes_to_another_expert_is_named(
    parity_in: ParityIn, criterion: Criterion | None
) -> None:
    """With both experts, and with the margin, which tells whether rounding can have done it."""
    words = (
        r"decision differs at step 1 after forward_backward: microbatch\d: blocks\.0\.router: "
        r"expert of token \d+ is \d here, \d in the reference; margin (0\.00\d+|\de-0\d);"
    )
    parity = parity_in(Cell(sequence="train"))
    with pytest.raises(ParityError, match=words):
        parity.check(
            planted.with_a_nudge, layouts.adamw, workload=workloads.moe, criterion=criterion
        )
