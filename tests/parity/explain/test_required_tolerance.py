"""Needed: the smallest bounds with which a kind would have passed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pytest_precision import Observation, close, norm, ulp, whole
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.criterion import Criterion
from pytest_precision.parity.compare.divergences import Judgement, judge
from pytest_precision.probes.proposals import required_tolerance
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.reader import Trace

Write = Callable[..., Trace]


def state(grad: Tensor, param: Tensor) -> list[tuple[Moment, list[Observation]]]:
    found = [whole("grad", "w", grad), whole("grad", "b", grad[:1]), whole("param", "w", param)]
    return [(Moment(0, "train", 1, "optimizer_step"), found)]


REFERENCE = torch.tensor([1.0, -2.0, 3.0, -4.0])
NEAR = REFERENCE * torch.tensor([1 + 2**-23, 1.0, 1 + 2**-20, 1 - 2**-21])


@pytest.fixture
def judged(write_trace: Write) -> Callable[..., Judgement]:
    def make(grad: Tensor, param: Tensor, criterion: object = None) -> Judgement:
        sides = write_trace(state(grad, param)), write_trace(state(REFERENCE, REFERENCE))
        return judge(*sides, Criteria.of(criterion))  # type: ignore[arg-type]

    return make


@pytest.mark.parametrize(
    "criterion", ["norm(rel={rel_l2})", "ulp({max_ulp})", "close(0, {max_abs})"]
)
def test_a_bound_of_what_was_needed_passes_and_less_does_not(
    judged: Callable[..., Judgement], criterion: str
) -> None:
    """Each figure is the smallest bound of its criterion."""
    found = required_tolerance.required_figures(judged(NEAR, REFERENCE))
    assert found is not None
    figures = found["grad"]
    assert (figures["of"], figures["tensors"], list(found)) == ("w", 2, ["grad"])
    exact, less = _bounds(criterion, figures)
    assert judged(NEAR, REFERENCE, {"grad": exact}).first is None
    assert judged(NEAR, REFERENCE, {"grad": less}).first is not None


def _bounds(criterion: str, figures: dict[str, float]) -> tuple[Criterion, Criterion]:
    if criterion.startswith("norm"):
        return norm(rel=figures["rel_l2"]), norm(rel=figures["rel_l2"] * 0.999)
    if criterion.startswith("ulp"):
        return ulp(int(figures["max_ulp"])), ulp(int(figures["max_ulp"]) - 1)
    atol = figures["max_abs"]
    return close(rtol=0, atol=atol), close(rtol=0, atol=atol * 0.999)


def test_a_pass_within_a_criterion_says_what_it_needed(judged: Callable[..., Judgement]) -> None:
    """So that a bound can be tightened."""
    found = required_tolerance.required_figures(judged(NEAR, REFERENCE, norm(rel=0.1)))
    assert found == required_tolerance.required_figures(judged(NEAR, REFERENCE))


def test_a_reference_of_zeros_needs_an_absolute_bound(write_trace: Write) -> None:
    """No relative error of zero is finite."""
    zeros = torch.zeros(4)
    sides = write_trace(state(NEAR, zeros)), write_trace(state(zeros, zeros))
    found = required_tolerance.required_figures(judge(*sides, Criteria.of(None)))
    assert found is not None
    assert found["grad"]["criterion"] == "close(rtol=0, atol=8)"


@pytest.mark.parametrize(
    ("grad", "words"),
    [
        (NEAR * torch.nan, "NaN or infinities"),
        (NEAR.bfloat16(), "dtype"),
        (NEAR.long(), "dtype"),
        (NEAR[:3], "shape"),
    ],
)
def test_where_no_bound_helps_the_reason_is_said(
    judged: Callable[..., Judgement], grad: Tensor, words: str
) -> None:
    """In the table, where the bound would stand."""
    judgement = judged(grad, REFERENCE)
    found = required_tolerance.required_figures(judgement)
    assert found is not None
    assert found["grad"] == {"tensors": found["grad"]["tensors"], "unbounded": [words]}
    assert f"no bound: {words}" in required_tolerance.required_lines(judgement)[1]


def test_a_setting_that_differs_is_offered_no_bound(write_trace: Write) -> None:
    """Another rate is another run, not rounding."""
    sides = [
        write_trace([(Moment(0, "train", 1, "optimizer_step"), [whole("lr", "w", REFERENCE * x)])])
        for x in (1, 1 + 2**-20)
    ]
    found = required_tolerance.required_figures(judge(*sides, Criteria.of(None)))
    assert found == {"lr": {"tensors": 1, "unbounded": ["a setting is no result"]}}


def test_equal_traces_need_nothing(judged: Callable[..., Judgement]) -> None:
    """Nothing stands in the report."""
    assert required_tolerance.required_figures(judged(REFERENCE, REFERENCE)) is None


def differing(write_trace: Write, kind: str, ours: Tensor, theirs: Tensor) -> Judgement:
    moment = Moment(0, "train", 1, "optimizer_step")
    sides = (write_trace([(moment, [whole(kind, "w", t)])], digests=True) for t in (ours, theirs))
    return judge(*sides, Criteria.of(None))


@pytest.mark.parametrize(
    ("kind", "ours", "criterion"),
    [
        ("grad", [1 + 2**-23] + [1.0] * 7, "norm(rel=2e-07)"),
        ("grad", [1 + 2**-20, 1.0], "norm(rel=2e-06)"),
        ("grad_norm", [1 + 2**-20], "norm(rel=4e-06)"),
        ("grad", [1.5, 1.5], "close(rtol=0, atol=1)"),
        ("grad", [1.25, 1.25], "norm(rel=0.5)"),
        ("grad_norm", [1.25], "close(rtol=0, atol=1)"),
    ],
    ids=["floor", "twice", "a number", "no relative bound", "half", "a number far off"],
)
def test_a_bound_has_room(write_trace: Write, kind: str, ours: list[float], criterion: str) -> None:
    """Twice what was needed, four times of one number, and never less than fp32 rounds."""
    candidate = torch.tensor(ours)
    figures = required_tolerance.required_figures(
        differing(write_trace, kind, candidate, torch.ones_like(candidate))
    )
    assert figures is not None
    assert figures[kind]["criterion"] == criterion


@pytest.mark.parametrize(
    ("kind", "size", "dtype", "reason"),
    [
        ("grad", 64, torch.float32, "digests alone"),
        ("step", 1, torch.int64, "values that are no floats"),
    ],
)
def test_what_has_no_distance_has_no_bound(
    write_trace: Write, kind: str, size: int, dtype: torch.dtype, reason: str
) -> None:
    """Of a digest, no value is known; a count that is off by one is no rounding."""
    sides = (torch.full((size,), n, dtype=dtype) for n in (2, 3))
    judgement = differing(write_trace, kind, *sides)
    assert required_tolerance.required_figures(judgement) == {
        kind: {"tensors": 1, "unbounded": [reason]}
    }
    assert required_tolerance.bounds(judgement)[kind].call == ""


def test_every_reason_is_said_once(write_trace: Write) -> None:
    """Also where a tensor is missing, and where others of the kind would have a bound."""
    tensors = {"nan": NEAR * torch.nan, "near": NEAR, "short": NEAR[:3], "more": NEAR[:2]}
    moment = Moment(0, "train", 1, "optimizer_step")
    ours = write_trace([(moment, [whole("grad", *item) for item in tensors.items()])])
    theirs = write_trace([(moment, [whole("grad", n, REFERENCE) for n in (*tensors, "lost")])])
    figures = required_tolerance.required_figures(judge(ours, theirs, Criteria.of(None)))
    reasons = ["NaN or infinities", "missing", "shape"]
    assert figures == {"grad": {"tensors": 5, "unbounded": reasons}}


def test_the_table_has_a_row_per_kind_in_causal_order(judged: Callable[..., Judgement]) -> None:
    """Two digits of each figure, and one of a distance of millions."""
    far = REFERENCE * torch.tensor([1.0, 1.0, 1.0, 1.5])
    assert required_tolerance.required_lines(judged(far, NEAR)) == [
        "would pass  norm(rel=)  ulp    close(atol=)  largest in",
        "grad        0.37        4e+06  2             w",
        "param       6.3e-07     12     2.9e-06       w",
    ]


def test_numbers_are_rounded_up_to_one_digit() -> None:
    """Never down; what is zero or endless stays so."""
    numbers = {0.0: 0.0, float("inf"): float("inf"), 0.021: 0.03, 0.5: 0.5, 9.1: 10.0, 1e-7: 1e-7}
    for number, rounded in numbers.items():
        assert required_tolerance.rounded_up(number) == pytest.approx(rounded, rel=1e-12)
