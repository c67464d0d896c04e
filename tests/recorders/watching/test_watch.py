"""A watched run names the rank that deviates, in the period in which it does."""

from __future__ import annotations

import pytest
from watched_loops import Plan, train

from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources


def said(resources: Resources, plan: Plan) -> list[str]:
    """Return what four ranks say of a watched loop, each the same."""
    ranks = resources.ranks(Settings(timeout=120, device="cpu"))
    first, *others = ranks.run(4, train, plan)
    assert others == [first] * 3
    return list(first)


@pytest.mark.parametrize(
    ("defect", "by_hand", "words"),
    [
        ("weight", False, "step 3: param of 0.weight on rank 2 "),
        ("gradient", False, "step 3: final_grad of 0.weight on rank 2 "),
        ("moment", False, "step 3: exp_avg of 0.weight on rank 2 "),
        ("seed", False, "step 3: rng of cpu on rank 2 "),
        ("rate", False, "step 3: lr of param_groups.0.lr on rank 2 "),
        ("noise", False, "step 3: param of 0.weight on rank 2 "),
        ("skip", True, "step 3: final_grad of 2.weight on rank 2 "),
        ("stale", True, "step 3: final_grad of 2.weight on rank 2 "),
    ],
)
def test_a_rank_that_deviates_is_named(
    resources: Resources, defect: str, by_hand: bool, words: str
) -> None:
    """With the step and the earliest cause, once, and who agrees."""
    (message,) = said(resources, Plan(defect, by_hand=by_hand))
    assert message.startswith(words)
    assert message.endswith("is not that of ranks 0, 1, 3")


def test_ranks_with_one_batch_are_named(resources: Resources) -> None:
    """Both, in the step in which they have it."""
    (message,) = said(resources, Plan("batch", at=1))
    assert message.startswith("step 1: rank 1 (")
    assert message.endswith("have the same batch")


@pytest.mark.parametrize("by_hand", [False, True])
def test_an_honest_loop_raises_no_alarm(resources: Resources, by_hand: bool) -> None:
    """In hundreds of steps with dropout and a schedule."""
    assert said(resources, Plan(by_hand=by_hand, steps=300)) == []
