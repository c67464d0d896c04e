"""The first line of a failure names the defect: what differs, when, how, and what agreed before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_precision import Observation, whole
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.differing import Finding
from pytest_precision.parity.compare.divergences import judge
from pytest_precision.parity.compare.pairs import align
from pytest_precision.parity.explain import wording
from pytest_precision.parity.explain.diagnosis import diagnose, diagnose_tensor
from pytest_precision.trace.moment import END, INIT, Moment
from pytest_precision.trace.reader import Trace

Write = Callable[..., Trace]

FORWARDS = [Moment(n - 1, "train", n, "forward_backward") for n in (1, 2)]
UPDATES = [moment._replace(phase="optimizer_step") for moment in FORWARDS]


def tensor(kind: str, *values: float, name: str = "w") -> Observation:
    return whole(kind, name, torch.tensor(values))


def number(kind: str, value: float, name: str = "w") -> Observation:
    return whole(kind, name, torch.tensor(value))


@pytest.fixture
def line(write_trace: Write) -> Callable[..., str]:
    """The first line on two runs, each a list of moments with what they show."""

    def line(ours: object, theirs: object, **options: Any) -> str:
        sides = (write_trace(side, **options) for side in (ours, theirs))
        judgement = judge(*sides, Criteria.of(None))
        return wording.headline(diagnose(judgement), judgement)

    return line


@pytest.mark.parametrize(
    ("moment", "words"),
    [
        (INIT, "before the first step"),
        (FORWARDS[1], "at step 2 after forward_backward"),
        (Moment(1, "save", 1, "save"), "after save, which follows step 1"),
        (UPDATES[1]._replace(phase=END), "after the last step, 2"),
    ],
)
def test_a_moment_has_words(moment: Moment, words: str) -> None:
    """The start, a phase of a step, another operation, and the end."""
    assert wording.when(moment) == words


BUFFERS = [tensor("buffer", 1, 2), tensor("buffer", 1, 3)]


@pytest.mark.parametrize(
    ("moments", "differs", "agreed"),
    [
        ([INIT, *UPDATES], 2, "; step 1 agreed"),
        ([INIT, *UPDATES], 1, "; the start agreed"),
        ([INIT, *UPDATES], 0, ""),
        (UPDATES, 0, ""),
        ([INIT, Moment(0, "eval", 0, "evaluate")], 1, "; the start agreed"),
        ([INIT, UPDATES[0], Moment(1, "eval", 1, "evaluate")], 2, "; step 1 agreed"),
        ([Moment(0, "eval", 0, "evaluate"), Moment(1, "train", 1, "optimizer_step")], 1, ""),
    ],
    ids=["step", "start", "nothing", "no start", "evaluation", "after a step", "no start either"],
)
def test_what_agreed_before_is_said_of_what_was_compared(
    line: Callable[..., str], moments: Sequence[Moment], differs: int, agreed: str
) -> None:
    """The last step before; a start that no side has shown has not agreed."""
    ours = [(moment, [BUFFERS[n >= differs]]) for n, moment in enumerate(moments)]
    words = line(ours, [(moment, BUFFERS[:1]) for moment in moments])
    assert words.startswith(f"buffer differs {wording.when(moments[differs])}: 1 of 2 elements")
    assert words.endswith(f" at (1,) on rank 0{agreed}")


def test_kinds_that_agreed_before_in_the_step_are_named(line: Callable[..., str]) -> None:
    """In causal order; what follows from what differs proves nothing, whether it agrees or not."""
    same = [number("loss", 1.0), tensor("param", 1, 2), tensor("buffer", 1, 2), number("lr", 0.5)]
    ours, theirs = ([(INIT, []), (UPDATES[0], [*same, tensor("exp_avg", 1, n)])] for n in (3, 4))
    assert line(ours, theirs).endswith("; loss, lr agreed")


@pytest.mark.parametrize(
    ("drawn", "update", "agreed"),
    [(INIT, UPDATES[0], ""), (FORWARDS[0], UPDATES[1], "; the start agreed")],
    ids=["start", "step"],
)
def test_what_differs_before_its_cause_has_not_agreed(
    line: Callable[..., str], drawn: Moment, update: Moment, agreed: str
) -> None:
    """A generator differs first, and the mode of a module says why a later loss does."""
    sides = []
    for n in (0, 1):
        seed = whole("rng", "cpu", torch.tensor([n], dtype=torch.uint8))
        mode = whole("flag", "training", torch.tensor(bool(n)))
        run = {INIT: [], drawn: [seed], update: [number("loss", n), mode]}
        sides.append([*run.items()])
    words = f"flag differs {wording.when(update)}: training is False on rank 0, not True"
    assert line(*sides) == f"{words}{agreed}"


def test_the_error_is_said_before_the_place(line: Callable[..., str]) -> None:
    """Only where one stands out, and NaN are counted instead."""
    reference = torch.randn(64, generator=torch.Generator().manual_seed(1))
    other = torch.randn(64, generator=torch.Generator().manual_seed(2))
    for candidate, words in (
        (2 * reference, ", 2 times the reference: 100 % of w, relative L2 error 1, worst at ("),
        (other, ": 100 % of w, relative L2 error "),
        (reference * torch.nan, ": w is all NaN, and is finite in the reference on rank 0"),
    ):
        sides = ([(UPDATES[0], [whole("grad", "w", side)])] for side in (candidate, reference))
        assert line(*sides).startswith(f"grad differs at step 1 after optimizer_step{words}")


def test_digests_differ_in_name_alone(line: Callable[..., str]) -> None:
    """Nobody knows where."""
    sides = ([(INIT, []), (UPDATES[0], [tensor("grad", *[n] * 32)])] for n in (1, 2))
    words = "grad differs at step 1 after optimizer_step: w; the start agreed"
    assert line(*sides, digests=True) == words


@pytest.mark.parametrize(
    ("kind", "candidate_lacks", "reference_lacks"),
    [
        (
            "exp_avg",
            "exp_avg of w is missing from the candidate at step 1 after optimizer_step; "
            "the reference has it",
            "exp_avg of w is missing from the reference at step 1 after optimizer_step; "
            "the candidate has it",
        ),
        (
            "used_param",
            "used_param of w is missing from the candidate at step 1 after optimizer_step; the "
            "reference has it: no call of its module was seen, and no param of that name before "
            "the step",
            "used_param of w is missing from the reference at step 1 after optimizer_step; the "
            "candidate has it: no call of its module was seen, and no param of that name before "
            "the step",
        ),
    ],
)
def test_a_tensor_of_one_side_is_missing_from_the_other(
    line: Callable[..., str], kind: str, candidate_lacks: str, reference_lacks: str
) -> None:
    """It is said which side lacks it, and where nothing shows a read, what was looked for."""
    has, lacks = [(INIT, []), (UPDATES[0], [tensor(kind, 1)])], [(INIT, []), (UPDATES[0], [])]
    assert line(lacks, has) == candidate_lacks
    assert line(has, lacks) == reference_lacks


@pytest.mark.parametrize("lacks", ["candidate", "reference"])
def test_what_is_shown_once_moved_stands_on_one_side(write_trace: Write, lacks: str) -> None:
    """A schedule that is not shown is not missing: it has not gone on."""
    traces = [write_trace([(UPDATES[0], [number("policy", 3.0)])]) for _ in "ab"]
    (pair,) = align(*traces, (UPDATES[0], UPDATES[0]))
    pair = replace(pair, candidate=None) if lacks == "candidate" else replace(pair, reference=None)
    finding = Finding(pair, "missing" if lacks == "candidate" else "extra")
    judgement = replace(judge(*traces, Criteria()), first=finding)
    assert wording.headline(diagnose_tensor(finding), judgement) == (
        f"the {lacks}'s policy w has not advanced since step 0; "
        f"the {wording.OTHER[lacks]}'s has at step 1 after optimizer_step"
    )


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        (torch.ones(2).double(), "w is float64 here, float32 in the reference"),
        (torch.ones(2, 2), "w is [2, 2] here, [2] in the reference"),
    ],
)
def test_another_dtype_or_shape_is_named(
    line: Callable[..., str], ours: Tensor, words: str
) -> None:
    """Both properties, and nothing of the values."""
    sides = ([(INIT, []), (UPDATES[0], [whole("grad", "w", t)])] for t in (ours, torch.ones(2)))
    words = f"grad differs at step 1 after optimizer_step: {words}; the start agreed"
    assert line(*sides) == words


@pytest.mark.parametrize("side", ["candidate", "reference"])
def test_ranks_that_disagree_are_told_of_their_side(write_trace: Write, side: str) -> None:
    """The other side is right whatever it has, so that nothing is said of it."""
    torn, sound = (
        write_trace(*([(UPDATES[0], [tensor("param", n)])] for n in values))
        for values in ((1, 2), (1, 1))
    )
    traces = (torn, sound) if side == "candidate" else (sound, torn)
    judgement = judge(*traces, Criteria.of(None))
    assert wording.headline(diagnose(judgement), judgement) == (
        f"param of w in the {side}: rank 1 and rank 0 hold different bits at step 1 after "
        "optimizer_step"
    )


def decisions(expert: int, margin: float | None) -> list[object]:
    chosen = whole("decision", "router", torch.tensor([[0], [expert]]))
    more = [] if margin is None else [number("margin", margin, "other")]
    if margin is not None:
        more.append(whole("margin", "router", torch.tensor([0.5, margin])))
    return [(INIT, []), (FORWARDS[0], [chosen, *more])]


@pytest.mark.parametrize(("margin", "words"), [(0.0012, "; margin 0.0012"), (None, "")])
def test_a_choice_is_told_by_its_row_and_margin(
    line: Callable[..., str], margin: float | None, words: str
) -> None:
    """Of the candidate, in the row of the choice, where it was recorded."""
    assert line(decisions(3, margin), decisions(1, 0.7)) == (
        "decision differs at step 1 after forward_backward: router 1 is 3 here, 1 in the "
        f"reference{words}; the start agreed"
    )


def rate(name: str, value: float, moment: Moment = INIT) -> list[object]:
    begun = [number("hyper", 1.0, f"initial_lr of {n}") for n in "ab"]
    weights = [tensor("param", 1, name=n) for n in "ab"]
    return [(INIT, weights), (moment, [*weights, number("lr", value, name), *begun])]


def test_what_the_sides_do_otherwise_is_said_instead(line: Callable[..., str]) -> None:
    """Other weights, another number of microbatches, a step more, a rate that has moved."""
    first = "other weights are updated in the first step: a here, b in the reference"
    assert line(rate("a", 0.5)[1:], rate("b", 0.5)[1:]) == first
    second = "other weights are updated at step 2: a here, b in the reference; the start agreed"
    assert line(rate("a", 0.5, UPDATES[1]), rate("b", 0.5, UPDATES[1])) == second
    moved = "lr differs at the first update: a is 0.5 on rank 0, not 0.25"
    assert line(rate("a", 0.5)[1:], rate("a", 0.25)[1:]) == moved
    sides = (
        [(INIT, []), (FORWARDS[0], [number("loss", n, f"microbatch{i}") for i in range(n)])]
        for n in (2, 3)
    )
    words = "loss differs at step 1 after forward_backward: 2 microbatches here, 3 in the reference"
    assert line(*sides) == f"{words}; the start agreed"
    forward = [number("loss", 1.0), tensor("used_param", 1)]
    both = [(INIT, []), (FORWARDS[0], forward)]
    assert line([*both, (FORWARDS[1], [])], [*both, (FORWARDS[1], forward[:1])]) == (
        "the candidate's optimizer steps again after step 1, without a forward before it; losses "
        "of step 2: 0 here, 1 in the reference"
    )
