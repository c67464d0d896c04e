"""Defects that both sides have, entered in `both_sides`: what is judged, and what turns it off."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import both_sides
import pytest
from wrong_gradients import MeansUnseen, engine_of

from pytest_precision import Cell, Parity, ParityError, Verdict, layouts, unchecked

ParityIn = Callable[[Cell], Parity]


def of_both(parity_in: ParityIn, name: str, **terms: object) -> Verdict:
    """Check a defect against itself."""
    entry = both_sides.ENTRIES[name]
    sides = (partial(side, name=name) for side in (both_sides.planted, both_sides.again))
    try:
        return parity_in(entry.cell).check(*sides, workload=entry.workload, **terms)
    except ParityError as error:
        return error.verdict


def test_there_are_sixty_two_of_eleven_families() -> None:
    """As many as the page counts."""
    families = [entry.family for entry in both_sides.ENTRIES.values()]
    assert (len(families), len({*families})) == (62, 11)


def test_the_judgement_of_gradients_is_turned_off_by_its_kind(parity_there: ParityIn) -> None:
    """The verdict says why; the same for some tensors, by a pattern of names."""
    meant = unchecked(reason="each mean counts alike")
    verdict = of_both(parity_there, "MeanOfMeans", oracle={"grad": meant})
    assert verdict.outcome == "pass"
    assert verdict.oracle is not None
    assert verdict.oracle["candidate"]["gradients"] == {"silent": "each mean counts alike"}
    some = of_both(parity_there, "DoubledExperts", oracle={"grad:*experts*": meant})
    assert (some.outcome, some.gate) == ("pass", None)


@pytest.mark.parametrize(
    "cell", [Cell(), Cell("bf16", "fp32"), Cell("bf16", "bf16"), Cell("fp16", "fp32")], ids=str
)
def test_the_right_layout_is_judged_and_passes(parity_there: ParityIn, cell: Cell) -> None:
    """In each precision that is computed once more, far from the bound."""
    twin = partial(both_sides.plain, again=True)
    verdict = parity_there(cell).check(both_sides.plain, twin, workload=both_sides.Small)
    assert verdict.oracle is not None
    found = verdict.oracle["candidate"]["gradients"]
    assert found["judged"] > 20
    assert found["worst"] < 0.5


def test_a_wrong_count_is_told_from_rounding(parity_there: ParityIn) -> None:
    """In bf16 single tensors may be as far off by rounding; all together have a direction."""
    cell = Cell("bf16", "fp32", sequence="train")
    sides = (partial(own, name="MeanOfMeans") for own in (both_sides.planted, both_sides.again))
    with pytest.raises(ParityError, match="it is a mean of the means of all microbatches"):
        parity_there(cell).check(*sides, workload=both_sides.Small)


def test_one_side_alone_is_a_divergence(parity_there: ParityIn) -> None:
    """The line below it says which wrong rule the candidate follows."""
    candidate = partial(both_sides.planted, name="MeanOfMeans")
    with pytest.raises(ParityError) as failure:
        parity_there(both_sides.ONE).check(candidate, layouts.adamw, workload=both_sides.Small)
    verdict = failure.value.verdict
    assert verdict.gate == "agreement"
    (line,) = (one for one in verdict.details if "Of the candidate" in one)
    assert "it is a mean of the means of all microbatches" in line


def test_a_sum_over_the_ranks_has_no_tokens_of_one_rank(parity_there: ParityIn) -> None:
    """Where no rank's own gradient is shown, a mean over the ranks is called what it is."""
    sides = (partial(engine_of, kind=MeansUnseen, again=again) for again in (False, True))
    with pytest.raises(ParityError, match="in both sides: it is divided by the ranks, too; "):
        parity_there(both_sides.TWO).check(*sides, workload=both_sides.Small)
