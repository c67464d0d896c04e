"""Two sides that do other things are told apart from two sides that compute otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import pytest
import torch

from pytest_precision import Observation, whole
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.differing import Finding
from pytest_precision.parity.compare.divergences import Judgement, judge
from pytest_precision.parity.explain.unlike import (
    COMPARE_SUMS,
    extra_update,
    number_lines,
    other_number,
    other_weights,
    rate_has_moved,
)
from pytest_precision.trace.moment import INIT, Moment
from pytest_precision.trace.reader import Trace

Write = Callable[..., Trace]

READ = whole("used_param", "w", torch.ones(2))
FORWARDS = [Moment(n - 1, "train", n, "forward_backward") for n in (1, 2, 3)]
UPDATE = FORWARDS[0]._replace(phase="optimizer_step")


def number(kind: str, name: str, value: float = 0.5) -> Observation:
    return whole(kind, name, torch.tensor(value, dtype=torch.float64))


@pytest.fixture
def judged(write_trace: Write) -> Callable[..., tuple[Finding, Judgement]]:
    """The first difference of two runs, and their judgement."""

    def judged(*sides: object) -> tuple[Finding, Judgement]:
        judgement = judge(*(write_trace(side) for side in sides), Criteria.of(None))
        assert judgement.first is not None
        return judgement.first, judgement

    return judged


def optimizer(
    rates: Iterable[str], weights: Iterable[str] = "abcd", moment: Moment = UPDATE
) -> list[tuple[Moment, list[Observation]]]:
    """A step that shows rates of these weights, among weights of these names."""
    observed = [whole("param", name, torch.ones(2)) for name in weights]
    return [(moment, [*observed, *(number("lr", name) for name in rates)])]


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        ("a", "b", "a here, b in the reference"),
        ("ab", "acd", "b here, c and 1 more in the reference"),
        ("ab", "a", ""),
        ("a", "ab", ""),
    ],
    ids=["others", "several", "more", "fewer"],
)
def test_other_weights_are_named_where_each_side_has_some(
    judged: Callable[..., tuple[Finding, Judgement]], ours: str, theirs: str, words: str
) -> None:
    """A side that updates fewer of them, and no other ones, has lost some."""
    assert other_weights(*judged(optimizer(ours), optimizer(theirs))) == words


def test_other_weights_are_not_those_of_another_model(
    judged: Callable[..., tuple[Finding, Judgement]],
) -> None:
    """Where names of weights differ, a wrapper adds a prefix; without weights, nobody knows."""
    wrapped = optimizer(["net.a"], ["net.a"]), optimizer("a", "a")
    assert other_weights(*judged(*wrapped)) == ""
    assert other_weights(*judged(optimizer("a", ""), optimizer("b", ""))) == ""
    twice = optimizer("a")[0][1], optimizer("a")[0][1]
    twice[0][-1] = number("lr", "a", 0.25)
    assert other_weights(*judged(*([(UPDATE, rates)] for rates in twice))) == ""


def test_rates_of_another_phase_are_not_counted(
    judged: Callable[..., tuple[Finding, Judgement]],
) -> None:
    """A weight that is missing after the update is not the one that is extra before it."""
    sides = [
        [*optimizer(first, moment=FORWARDS[0]), *optimizer(last)]
        for first, last in (("ab", "a"), ("a", "ab"))
    ]
    assert other_weights(*judged(*sides)) == ""


def microbatches(count: int) -> list[Observation]:
    return [number("loss", f"microbatch{n}", count) for n in range(count)]


def losses(*steps: int, read: str = "rrr") -> list[tuple[Moment, list[Observation]]]:
    """Steps with so many losses, of which those that are marked `r` show what a forward read."""
    return [
        (
            moment,
            [
                *[READ][: mark == "r"],
                *microbatches(count),
            ],
        )
        for moment, count, mark in zip(FORWARDS, steps, read, strict=False)
    ]


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (losses(4), losses(2), "4 microbatches here, 2 in the reference"),
        (losses(1), losses(2), "1 microbatch here, 2 in the reference"),
        (losses(1, 0, read="r."), losses(1, 1), "0 microbatches here, 1 in the reference"),
        (losses(1, 0, read=".."), losses(1, 1), ""),
        (losses(1, 0), losses(1, 1), ""),
    ],
    ids=["fewer", "one", "no forward", "forwards not seen", "a forward without a loss"],
)
def test_another_number_of_microbatches_is_counted(
    judged: Callable[..., tuple[Finding, Judgement]], ours: object, theirs: object, words: str
) -> None:
    """None is a number only where no forward ran: `torch.autograd.grad` shows no loss."""
    finding, judgement = judged(ours, theirs)
    assert finding.pair.kind == "loss"
    assert other_number(judgement, finding.pair.moment.op) == words


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [((4,), (2,), "4 microbatches here, 2 in the reference"), ((2, 3), (6,), ""), ((2,), (2,), "")],
    ids=["fewer", "as many", "alike"],
)
def test_an_engine_shows_a_vector_of_microbatches(
    judged: Callable[..., tuple[Finding, Judgement]],
    ours: tuple[int, ...],
    theirs: tuple[int, ...],
    words: str,
) -> None:
    """Its length is their number, whatever its values."""
    sides = ([(FORWARDS[0], [whole("loss", "all", torch.rand(n))])] for n in (ours, theirs))
    finding, judgement = judged(*sides)
    assert other_number(judgement, 0) == words
    assert number_lines(finding, judgement) == []


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        ((1, 2, 1), "4 microbatches here, 3 in the reference (on rank 1)"),
        ((0, 2, 1), ""),
        ((2, 1, 2), "5 microbatches here, 3 in the reference (on ranks 0, 2)"),
        ((2, 2, 2), "6 microbatches here, 3 in the reference"),
    ],
)
def test_ranks_that_alone_have_other_microbatches_are_named(
    write_trace: Write, ours: tuple[int, ...], words: str
) -> None:
    """As one of several actors does that has left out an update."""
    sides = [
        [[(FORWARDS[0], [replace(loss, local=True) for loss in microbatches(n)])] for n in numbers]
        for numbers in (ours, (1, 1, 1))
    ]
    judgement = judge(*(write_trace(*side) for side in sides), Criteria.of(None))
    assert other_number(judgement, 0) == words


def test_a_step_without_losses_has_no_number(
    judged: Callable[..., tuple[Finding, Judgement]],
) -> None:
    """An operation of which no side shows any has none to compare."""
    _, judgement = judged(losses(2), losses(1))
    assert other_number(judgement, 7) == ""


def test_advice_on_numbers_stands_below_the_first_line(
    judged: Callable[..., tuple[Finding, Judgement]],
) -> None:
    """Sums can be compared where both have losses; of another kind, the numbers are said."""
    assert number_lines(*judged(losses(4), losses(2))) == [COMPARE_SUMS]
    assert number_lines(*judged(losses(1, 0, read="r."), losses(1, 1))) == []
    sides = losses(4), losses(2)
    for scale, (_, observed) in enumerate((side[0] for side in sides), start=1):
        observed[0] = whole("used_param", "w", torch.ones(2) * scale)
    words = "Step 1 has 4 microbatches here, 2 in the reference"
    assert number_lines(*judged(*sides)) == [words]
    even = losses(2), losses(2)
    even[0][0][1][0] = whole("used_param", "w", torch.zeros(2))
    assert number_lines(*judged(*even)) == []


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (
            losses(1, 0, 1, read="r.r"),
            losses(1, 1, 1),
            "the candidate's optimizer steps again after step 1, without a forward before it; "
            "losses of step 2: 0 here, 1 in the reference",
        ),
        (
            losses(2, 2),
            losses(0, 2, read=".r"),
            "the reference's optimizer steps at once, without a forward before it; "
            "losses of step 1: 2 here, 0 in the reference",
        ),
        (losses(1, 0, read="rr"), losses(1, 1), ""),
        (losses(0, 0, read=".r"), losses(1, 1), ""),
        (losses(1, 1), losses(1, 2), ""),
    ],
    ids=["again", "at once", "with a forward", "no loss at all", "another number"],
)
def test_a_step_without_a_forward_is_an_extra_update(
    judged: Callable[..., tuple[Finding, Judgement]], ours: object, theirs: object, words: str
) -> None:
    """Of a side whose forwards and losses are seen in other steps."""
    finding, judgement = judged(ours, theirs)
    assert extra_update(finding, judgement) == words


def test_only_a_loss_of_training_tells_an_extra_update(
    judged: Callable[..., tuple[Finding, Judgement]],
) -> None:
    """An evaluation may be left out, and what else differs says itself what it is."""
    evaluation = Moment(1, "eval", 1, "evaluate")
    ours, theirs = losses(1), [*losses(1), (evaluation, [number("loss", "all")])]
    finding, judgement = judged([*ours, (evaluation, [])], theirs)
    assert (finding.pair.kind, extra_update(finding, judgement)) == ("loss", "")
    finding, judgement = judged(optimizer("a"), optimizer("b"))
    assert extra_update(finding, judgement) == ""


def rate(value: float, start: Mapping[str, float], moment: Moment = INIT) -> list[object]:
    """A moment with the rate of `w`, and rates with which weights began."""
    begun = [number("hyper", f"initial_lr of {name}", rate) for name, rate in start.items()]
    return [(moment, [number("lr", "w", value), *begun])]


@pytest.mark.parametrize(
    ("ours", "theirs", "moved"),
    [
        (rate(0.5, {"w": 1.0}), rate(0.25, {"w": 1.0}), True),
        (rate(0.5, {"w": 1.0}), rate(0.25, {"w": 0.5}), False),
        (rate(0.5, {}), rate(0.25, {}), False),
        (rate(0.5, {"w": 1.0}), rate(0.25, {}), False),
        (rate(0.5, {"b": 1.0}), rate(0.25, {"b": 1.0}), False),
        (rate(0.5, {"w": 1.0}, UPDATE), rate(0.25, {"w": 1.0}, UPDATE), False),
        (rate(0.5, {"w": 1.0}), [(INIT, [])], False),
    ],
    ids=["moved", "another start", "no schedule", "one side's", "another's", "later", "missing"],
)
def test_a_rate_has_moved_where_both_began_with_the_same(
    judged: Callable[..., tuple[Finding, Judgement]], ours: object, theirs: object, moved: bool
) -> None:
    """A schedule for each microbatch has gone on before the first update shows it."""
    finding, _ = judged(ours, theirs)
    assert finding.pair.kind == "lr"
    assert rate_has_moved(finding.pair) is moved
