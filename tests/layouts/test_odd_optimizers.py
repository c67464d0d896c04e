"""Whatever an optimizer keeps, its run and its cell go on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import odd_optimizers
import pytest

from pytest_precision import Cell, Parity, Verdict

Agreed = Callable[..., Verdict]
ParityIn = Callable[[Cell], Parity]

TRAIN = Cell(sequence="train2")
ODD = [*odd_optimizers.GROUPS, *odd_optimizers.STATE]
ODD += [f"no {number}" for number in odd_optimizers.WITHOUT]

NOT_SHOWN = [
    ("text", "what is no tensor in text", "AdamW keeps a str there"),
    ("generator", "what is no tensor in generator", "AdamW keeps a Random there"),
    ("huge", "what is no tensor in huge", "AdamW keeps an integer of more than 64 bits there"),
    ("abstract", "what is no tensor in abstract", "AdamW keeps device=meta there"),
    ("a step in words", "step of the groups", "AdamW has a str there"),
]
NOT_JUDGED = [
    ("three betas", "its betas is (0.9, 0.99, 0.999), not two numbers"),
    ("betas in words", "its betas is ('low', 'high'), not two numbers"),
    ("no betas", "it has no betas"),
    ("no weight_decay", "it has no weight_decay"),
    ("two eps", "its eps is (None, 0.001), not a number"),
    ("decay in words", "its weight_decay is 'none', not a number"),
]
AGAIN = {odd for odd, *_ in (*NOT_SHOWN, *NOT_JUDGED)}
"""In CI, their engines go on in the tests of what is said of them."""


@pytest.fixture
def agreed(parity_in: ParityIn) -> Callable[[str], Verdict]:
    """The verdict of an engine with an odd optimizer."""

    def check(odd: str) -> Verdict:
        sides = (partial(side, odd=odd) for side in (odd_optimizers.engine, odd_optimizers.again))
        return parity_in(TRAIN).check(*sides, workload=odd_optimizers.Constant)

    return check


@pytest.mark.parametrize(
    "odd", [pytest.param(odd, marks=pytest.mark.nightly if odd in AGAIN else ()) for odd in ODD]
)
def test_an_engine_goes_on(agreed: Agreed, odd: str) -> None:
    """Whatever its optimizer keeps; what can be compared is."""
    assert agreed(odd).observations > 100


# In CI, engines have these, too: an optimizer is read alike in both.
@pytest.mark.parametrize(
    "odd", [pytest.param(odd, marks=pytest.mark.nightly if odd in AGAIN else ()) for odd in ODD]
)
def test_a_script_goes_on(parity_in: ParityIn, odd: str) -> None:
    """As an engine does."""
    sides = (partial(odd_optimizers.loop, odd=odd, again=again) for again in (False, True))
    assert parity_in(TRAIN).check(*sides).observations > 20


@pytest.mark.parametrize(("odd", "what", "why"), NOT_SHOWN)
def test_what_cannot_be_shown_is_said(agreed: Agreed, odd: str, what: str, why: str) -> None:
    """In the list of what was not compared, with the optimizer that keeps it."""
    assert agreed(odd).left_out[what] == f"candidate: {why}"


@pytest.mark.parametrize(("odd", "why"), NOT_JUDGED)
def test_what_cannot_be_judged_is_said(agreed: Agreed, odd: str, why: str) -> None:
    """No update of such an optimizer is held to the rule that the workload declares."""
    found = agreed(odd).oracle["candidate"]
    assert {*found["unjudged"].values()} == {f"AdamW follows another rule: {why}"}
    assert found["judged"] == 0
