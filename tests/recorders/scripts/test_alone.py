"""What a loop shows by itself: what is wrong fails, what is unusual is a note."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import alone_loops
import pytest
from checked import ParityIn, Recorded, failed
from combined_loops import Combination, combinations, combined

from pytest_precision import Cell, unchecked
from pytest_precision.probes.by_itself.judged_log import JudgedLog, Remark
from pytest_precision.trace.recording import Recording

WORDS = {
    "counts_again_in_backward": "inner.1 counted more batches at step 1 than it had",
    "lists_what_is_frozen_for_now": "AdamW has no parameter to train, while 0.weight (and 3 more)",
    "leaves_the_first_layer_out": "0.weight (and 1 more) has a gradient that no optimizer reads",
    "casts_once_for_all_steps": "0.weight (and 3 more) was read at step 2 as it was cast before",
    "keeps_its_copy": "weight was read at step 2 as it was copied before an update: the copy",
    "never_copies_masters_back": "model computes at step 2 with 0.weight (and 3 more) as it was",
    "throws_a_loss_away": "nothing uses the result of CarriesLoss at alone_loops.py:",
    "updates_matrices_alone": "0.bias (and 1 more) has a gradient that its optimizer never uses",
    "drops_a_head": "further.weight (and 1 more) is used in each step and has no gradient",
    "rounds_second_moments_to_zero": "0.weight moved at step 3 by more than 50 times what Adam",
    "clips_to_nothing_before_muon": "0.weight moved at step 1 by less than a hundredth of what",
    "decays_by_more_than_its_rate": "0.weight moved at step 1 by more than its weight decay",
    "draws_its_masks_again": "the backward of step 1 drew random numbers",
}
"""A loop, and what is said of it."""


def found_in(recorded: Recorded, tmp_path: Path, name: str) -> tuple[Remark, ...]:
    recorded(partial(alone_loops.one, name=name), steps=3)
    return Recording.read("loop", Cell(), tmp_path, None).log(JudgedLog).remarks


@pytest.mark.parametrize("name", alone_loops.WRONG | alone_loops.NOTED)
def test_a_loop_tells_what_is_wrong(recorded: Recorded, tmp_path: Path, name: str) -> None:
    """Once, with the first name and the step."""
    (remark,) = found_in(recorded, tmp_path, name)
    assert WORDS[name] in remark.words
    assert remark.fails is (name in alone_loops.WRONG)


@pytest.mark.parametrize("name", alone_loops.RIGHT)
def test_nothing_is_said_of_what_is_right(recorded: Recorded, tmp_path: Path, name: str) -> None:
    """Recomputation, frozen parts, several optimizers, masters."""
    assert found_in(recorded, tmp_path, name) == ()


def test_a_check_fails_though_both_sides_agree(parity_shared: ParityIn) -> None:
    """The line below says how it is allowed."""
    sides = (
        partial(of, name="draws_its_masks_again") for of in (alone_loops.one, alone_loops.other)
    )
    verdict = failed(parity_shared(Cell(sequence="train2")), *sides)
    assert verdict.ruling.gate == "by_itself"
    assert verdict.headline.endswith("without its random state in both sides")
    assert "oracle={'rng': unchecked(reason=...)} allows it" in verdict.ruling.details[0]


def test_a_test_may_allow_what_one_run_shows(parity_shared: ParityIn) -> None:
    """By the kind, with a reason."""
    sides = (
        partial(of, name="draws_its_masks_again") for of in (alone_loops.one, alone_loops.other)
    )
    meant = {"rng": unchecked(reason="gradients are rounded at random")}
    assert parity_shared(Cell(sequence="train2")).check(*sides, oracle=meant).outcome == "pass"


def test_what_is_unusual_is_a_note(parity_shared: ParityIn) -> None:
    """The check passes."""
    sides = (
        partial(of, name="leaves_the_first_layer_out")
        for of in (alone_loops.one, alone_loops.other)
    )
    verdict = parity_shared(Cell(sequence="train2")).check(*sides)
    (note,) = verdict.notes
    assert note.endswith("has a gradient that no optimizer reads in candidate and reference")


@pytest.mark.parametrize("name", alone_loops.OF_TWO_RANKS)
def test_ranks_are_held_against_each_other(parity_shared: ParityIn, name: str) -> None:
    """What each draws, where their data differ, and the permutation of which each has a share."""
    both = (alone_loops.two_ranks, alone_loops.two_other_ranks)
    parity = parity_shared(Cell(sequence="train2", world_size=2))
    sides = [partial(of, name=name) for of in both]
    if "permutations" in alone_loops.OF_TWO_RANKS[name]:
        words = failed(parity, *sides).headline
    else:
        words = " ".join(parity.check(*sides).notes)
    assert words.startswith(alone_loops.OF_TWO_RANKS[name])
    assert bool(words) is bool(alone_loops.OF_TWO_RANKS[name])


def each_combination() -> Iterator[Any]:
    for number, kind in enumerate(combinations()):
        yield pytest.param(kind, id=kind.name, marks=() if number < 2 else pytest.mark.nightly)


@pytest.mark.parametrize("kind", [*each_combination()])
def test_no_combination_of_what_is_right_is_told(
    recorded: Recorded, tmp_path: Path, kind: Combination
) -> None:
    """Recomputation, dropout, tied and frozen parts, two rates, warm restarts, averages."""
    recorded(partial(combined, kind=kind), steps=3)
    assert Recording.read("loop", Cell(), tmp_path, None).log(JudgedLog).remarks == ()


@pytest.mark.parametrize("saves", ["average", "model"])
def test_loaded_averages_are_told(parity_shared: ParityIn, saves: str) -> None:
    """Below the first difference: the average took the place of the weights in the checkpoint."""
    loop = partial(alone_loops.saved_in_between, saves=saves)
    parity = parity_shared(Cell(sequence="train3-save-load-train2"))
    options = {"reference_cell": Cell(sequence="train5")}
    if saves == "model":
        assert parity.check(loop, loop, **options).outcome == "pass"  # type: ignore[arg-type]
        return
    ruling = failed(parity, loop, loop, **options).ruling
    words = "In the candidate, the loaded weights are the average of step 3"
    assert words in ruling.explained


def test_a_schedule_that_never_steps_is_a_note(parity_shared: ParityIn) -> None:
    """Both sides have it, and agree."""
    name = "schedules_and_never_steps"
    sides = (partial(of, name=name) for of in (alone_loops.one, alone_loops.other))
    (note,) = parity_shared(Cell(sequence="train2")).check(*sides).notes
    assert note == "StepLR has not stepped since the start in candidate and reference"
