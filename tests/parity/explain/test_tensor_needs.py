"""Needs: how far each tensor was off, beside its size, its way and what noise moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from pytest_precision import whole
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.divergences import judge
from pytest_precision.probes.proposals.tensor_needs import (
    ComparedRun,
    Need,
    moved_by_noise,
    needs_of,
    shares_of,
    usual_error,
)
from pytest_precision.trace.moment import INIT, Moment
from pytest_precision.trace.reader import Trace

Write = Callable[..., Trace]
Values = Mapping[tuple[str, str], Tensor]

STEPS = [INIT, *(Moment(n - 1, "train", n, "optimizer_step") for n in (1, 2))]
ONES = torch.ones(4)


@pytest.fixture
def run(write_trace: Write) -> Callable[..., ComparedRun]:
    """A comparison of two traces, each of what its moments show."""

    def run(ours: list[Values], theirs: list[Values], *, digests: bool = False) -> ComparedRun:
        sides = [
            write_trace(
                [
                    (moment, [whole(*key, tensor) for key, tensor in state.items()])
                    for moment, state in zip(STEPS, states, strict=False)
                ],
                digests=digests,
            )
            for states in (ours, theirs)
        ]
        return ComparedRun(judge(*sides, Criteria.of(None)), sides[1])

    return run


@pytest.mark.parametrize(
    ("errors", "usual"),
    [
        ([], 0.0),
        ([3.0], 3.0),
        ([1.0, 1.0, 4.0], 4.0),
        ([1.0, 1.0, 4.1], 1.0),
        ([1.0, 2.0, 7.0, 100.0], 7.0),
        ([0.0, 0.0, 1.0], 0.0),
    ],
)
def test_the_usual_error_leaves_outliers_out(errors: list[float], usual: float) -> None:
    """Those that are more than four times the median, whatever their number."""
    assert usual_error(errors) == usual
    assert usual_error(errors[::-1]) == usual


def test_a_need_is_the_largest_of_all_steps_and_runs(run: Callable[..., ComparedRun]) -> None:
    """And a tensor that agrees has a size, so that its kind has no bound of a few."""
    grad = {("grad", "w"): ONES, ("grad", "b"): ONES[:2]}
    off = [{**grad, ("grad", "w"): ONES * (1 + error)} for error in (0.25, 0.5, 0.125)]
    runs = [run(off[:2], [grad, grad]), run([off[2]], [grad])]
    assert needs_of(runs) == {"grad": {"w": Need(0.5, 4), "b": Need(0.0, 2)}}
    assert needs_of(runs[1:])["grad"]["w"] == Need(0.125, 4)


def test_results_that_agree_are_needed_and_settings_are_not(
    run: Callable[..., ComparedRun],
) -> None:
    """A result differs on other data if any does; a setting is the same on all of them."""
    state = {(kind, "w"): ONES for kind in ("loss", "grad", "buffer", "lr")}
    off = {**state, ("loss", "w"): ONES * 2}
    assert needs_of([run([off], [state])]) == {
        "loss": {"w": Need(1.0, 4)},
        "grad": {"w": Need(0, 4)},
    }
    off = {**state, ("buffer", "w"): ONES * 2}
    assert needs_of([run([off], [state])])["buffer"] == {"w": Need(1.0, 4)}


def test_all_forms_of_a_weight_need_the_most_of_any(run: Callable[..., ComparedRun]) -> None:
    """What one form rounds away in this step shows in the next; other kinds have their own."""
    kinds = ("master", "param", "exp_avg")
    state = {(kind, name): ONES for kind in kinds for name in "ab"}
    off = {**state, ("master", "a"): ONES * 1.5, ("param", "b"): ONES * 1.25}
    assert needs_of([run([off], [state])]) == {
        "master": {"a": Need(0.5, 4), "b": Need(0.25, 4)},
        "param": {"a": Need(0.5, 4), "b": Need(0.25, 4)},
        "exp_avg": {"a": Need(0.0, 4), "b": Need(0.0, 4)},
    }


def test_a_share_is_the_way_of_a_weight_by_its_length(run: Callable[..., ComparedRun]) -> None:
    """The largest of all steps and runs, from where each run began; of zeros, the way itself."""
    keys = [("master", "w"), ("master", "zero"), ("exp_avg", "w")]
    ways = [[(1.0, 0.0), (2.0, 0.5), (4.0, 0.0)], [(1.0, 0.0), (1.25, 0.25)]]
    runs = []
    for way in ways:
        states = [dict(zip(keys, (ONES * a, ONES * b, ONES * a), strict=True)) for a, b in way]
        runs.append(run(states, states))
    assert shares_of(runs) == {("master", "w"): 0.75, ("master", "zero"): 1.0}
    assert shares_of(runs[1:]) == {("master", "w"): 0.2, ("master", "zero"): 1.0}
    for start, share in ((0.0, 0.0), (1.5, 3.0)):
        states = [{("master", "zero"): ONES * start}, {("master", "zero"): ONES * 0}]
        assert shares_of([run(states, states)]) == {("master", "zero"): share}


@pytest.mark.parametrize(
    ("tensor", "digests"),
    [(torch.ones(64), True), (torch.ones(4, dtype=torch.int64), False)],
    ids=["a digest", "no float"],
)
def test_what_has_no_values_goes_no_way(
    run: Callable[..., ComparedRun], tensor: Tensor, digests: bool
) -> None:
    """Nobody knows how far a digest has moved, and no quantized weight moves by a share."""
    states = [{("param", "w"): tensor}, {("param", "w"): tensor + 1}]
    assert shares_of([run(states, states, digests=digests)]) == {}


def test_noise_names_what_it_moves_more_than_is_usual() -> None:
    """By how many times; one number, and what noise does not move, say nothing."""
    needs = {"a": Need(1.0, 4), "b": Need(2.0, 4), "c": Need(20.0, 4)}
    others = {"number": Need(99.0, 1), "still": Need(0.0, 4)}
    assert moved_by_noise({"grad": needs | others}, {}) == {("grad", "c"): 10.0}
    shares = {("master", "c"): 10.0, ("master", "a"): 0.0}
    assert moved_by_noise({"master": needs}, shares) == {}
