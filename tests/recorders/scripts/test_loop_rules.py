"""Rules of every loop: a script that breaks one is red, and right loops are left alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
import ruled_loops
from checked import ParityIn, Recorded, failed
from variations.unusual_loops import LOOPS
from variations.unusual_loops import side as unusual

from pytest_precision import Cell, unchecked
from pytest_precision.probes.by_itself.judged_log import JudgedLog
from pytest_precision.probes.loop_rules.broken_rules import BrokenRules
from pytest_precision.trace.recording import Recording

WORDS = {
    "steps_twice": "0.weight (and 3 more) was updated at step 4 by the gradient of the step before",
    "never_zeroed": "0.weight (and 3 more) was updated at step 2 by a gradient that was added",
    "zeroed_in_part": "2.weight (and 1 more) was updated at step 2 by a gradient that was added",
    "zeroed_at_first": "0.weight (and 3 more) was updated at step 2 by a gradient that was added",
    "steps_past_the_scaler": "was updated at step 2 by a gradient that is not finite",
    "updates_the_scaler_before_the_step": "(and 3 more) was divided by the loss scale twice",
    "unscales_each_microbatch": "0.weight (and 3 more) was divided by the loss scale twice",
    "decays_what_has_no_gradient": "was moved at step 2 by AdamW, though it had no gradient",
}
"""A loop that breaks a rule, and what is said of it."""


def rules_of(recorded: Recorded, tmp_path: Path, name: str) -> Mapping[str, str]:
    recorded(partial(ruled_loops.one, name=name), steps=4)
    return broken_rules(tmp_path)


def broken_rules(folder: Path) -> Mapping[str, str]:
    return Recording.read("loop", Cell(), folder, None).log(BrokenRules).kinds


@pytest.mark.parametrize("name", ruled_loops.BROKEN)
def test_a_broken_rule_is_told(recorded: Recorded, tmp_path: Path, name: str) -> None:
    """With the first weight, the step, and how many more there are."""
    (words,) = rules_of(recorded, tmp_path, name)
    assert WORDS[name] in words


@pytest.mark.parametrize("name", ruled_loops.KEPT)
def test_a_right_loop_is_left_alone(recorded: Recorded, tmp_path: Path, name: str) -> None:
    """Whatever its style."""
    assert rules_of(recorded, tmp_path, name) == {}


@pytest.mark.parametrize("name", LOOPS)
def test_an_unusual_loop_is_left_alone(recorded: Recorded, tmp_path: Path, name: str) -> None:
    """Those that nobody has got wrong."""
    recorded(partial(unusual, name=name, other=False), steps=4)
    assert broken_rules(tmp_path) == {}
    assert Recording.read("loop", Cell(), tmp_path, None).log(JudgedLog).remarks == ()


def test_both_sides_fail_by_it(parity_shared: ParityIn) -> None:
    """Though they agree bit for bit; the line below says how it is allowed."""
    sides = (partial(side, name="never_zeroed") for side in (ruled_loops.one, ruled_loops.other))
    verdict = failed(parity_shared(Cell(sequence="train3")), *sides)
    assert verdict.ruling.gate == "loop_rules"
    assert "which nobody had zeroed in both sides" in verdict.headline
    assert "oracle={'grad': unchecked(reason=...)} allows it" in verdict.ruling.details[0]


def test_a_test_may_allow_it(parity_shared: ParityIn) -> None:
    """By the kind, with a reason."""
    sides = (partial(side, name="never_zeroed") for side in (ruled_loops.one, ruled_loops.other))
    meant = {"grad": unchecked(reason="gradients are summed over all steps")}
    assert parity_shared(Cell(sequence="train3")).check(*sides, oracle=meant).outcome == "pass"
