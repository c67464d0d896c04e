"""Spread: the table of kinds by operations as columns of plain data."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pytest_precision import Observation, ulp, whole
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.divergences import judge
from pytest_precision.parity.explain import spread
from pytest_precision.parity.explain.spread import MOST_TENSORS
from pytest_precision.trace.moment import INIT, Moment
from pytest_precision.trace.reader import Trace

Write = Callable[..., Trace]


def steps(*states: list[Observation]) -> list[tuple[Moment, list[Observation]]]:
    moments = [Moment(n, "train", n + 1, "optimizer_step") for n in range(len(states))]
    return [(INIT, []), *zip(moments, states, strict=True)]


def state(values: Tensor, near: float = 1.0) -> list[Observation]:
    return [whole("lr", "group0", torch.tensor([near])), whole("exp_avg", "w", values)]


def test_states_and_figures(write_trace: Write) -> None:
    """Equal, within the criterion, beyond it by so much, of another dtype, not observed."""
    one, off = torch.ones(4), torch.tensor([1.0, 1.0, 1.0, 1.5])
    ours = write_trace(steps(state(one), state(off, 1 + 2**-23), state(one.bfloat16())))
    theirs = write_trace(steps(state(one), state(one), state(one)))
    found = spread.spread_figures(judge(ours, theirs, Criteria.of({"lr": ulp(1)})))
    assert (found["operation"], found["step"]) == (["init", *["train"] * 3], [0, 1, 2, 3])
    assert found["kinds"]["lr"] == {
        "dtypes": [["float32", "float32"]],
        "state": [".", "=", "~", "="],
    }
    assert found["kinds"]["exp_avg"] == {
        "dtypes": [["bfloat16", "float32"], ["float32", "float32"]],
        "state": [".", "=", "values", "dtype"],
        "mismatched": [None, None, 0.25, None],
        "max_ulp": [None, None, 2**22, None],
        "rel_l2": [None, None, 0.25, None],
    }


@pytest.mark.parametrize(("number", "words"), [("nan", "NaN"), ("inf", "values")])
def test_what_is_not_finite_has_a_share_and_no_distance(
    write_trace: Write, number: str, words: str
) -> None:
    """A NaN is named, and is no figure that JSON lacks."""
    nan = torch.tensor([float(number)])
    traces = write_trace(steps(state(nan))), write_trace(steps(state(torch.ones(1))))
    found = spread.spread_figures(judge(*traces, Criteria.of(None)))
    assert json.loads(json.dumps(found["kinds"]["exp_avg"], allow_nan=False)) == {
        "dtypes": [["float32", "float32"]],
        "state": [".", words],
        "mismatched": [None, 1.0],
    }


def test_long_runs_keep_the_columns_around_the_divergence(write_trace: Write) -> None:
    """The data of a check does not grow with the number of its steps."""
    right = [state(torch.ones(1)) for _ in range(100)]
    wrong = [state(torch.ones(1) * (1 + (n >= 70))) for n in range(100)]
    found = spread.spread_figures(
        judge(write_trace(steps(*wrong)), write_trace(steps(*right)), Criteria.of(None))
    )
    assert len(found["step"]) == spread.MOST_COLUMNS
    assert found["kinds"]["exp_avg"]["state"][found["step"].index(71)] == "values"


def test_a_layer_stands_out_among_the_tensors(write_trace: Write) -> None:
    """A row per tensor: equal, off by so much, not observed; of the first kind and of weights."""
    names = [f"layer{n}" for n in range(4)]
    right, wrong = torch.ones(4), torch.tensor([1.0, 1.0, 1.0, 1.5])

    def states(**off: Tensor) -> list[Observation]:
        return [whole("param", name, off.get(name, right)) for name in names]

    ours = write_trace(steps(states(), states(layer2=wrong), states(layer2=wrong, layer3=wrong)))
    theirs = write_trace(steps(states(), states(), states()))
    found = spread.spread_figures(judge(ours, theirs, Criteria.of(None)))
    assert found["tensors"] == {
        "param": {
            "name": names,
            "rel_l2": [
                [None, 0.0, 0.0, 0.0],
                [None, 0.0, 0.0, 0.0],
                [None, 0.0, 0.25, 0.25],
                [None, 0.0, 0.0, 0.25],
            ],
            "tensors": 4,
        }
    }


def test_of_many_tensors_every_nth_is_kept_and_the_first_that_differs(write_trace: Write) -> None:
    """The data of a check does not grow with the size of its model."""
    names = [f"layer{n}" for n in range(500)]

    def states(off: Tensor) -> list[Observation]:
        return [whole("param", n, off if n == "layer251" else torch.ones(4)) for n in names]

    ours, theirs = (write_trace(steps(states(torch.ones(4) * n))) for n in (1, 2))
    found = spread.spread_figures(judge(ours, theirs, Criteria.of(None)))["tensors"]["param"]
    assert "layer251" in found["name"]
    assert len(found["name"]) <= MOST_TENSORS
    assert found["tensors"] == 500


def cells(lines: list[str]) -> list[list[str]]:
    return [line.split() for line in lines]


def test_marks_of_the_table(write_trace: Write) -> None:
    """Each cell says what is worst in it: nothing seen, equal, within, a share, a word."""
    one, half = torch.ones(2), torch.tensor([1.0, 2.0])
    nan = torch.tensor([1.0, float("nan")])
    candidates = (one, half, nan, one.double(), nan.double(), nan)
    ours = [[whole("buffer", "w", tensor)] for tensor in candidates]
    theirs = [[whole("buffer", "w", one)] for _ in ours[1:]] + [[whole("buffer", "w", nan.flip(0))]]
    theirs[1].append(whole("buffer", "b", one))
    sides = write_trace(steps(*ours, [])), write_trace(steps(*theirs, []))
    header, row, note = spread.spread_lines(judge(*sides, Criteria.of(None)))
    assert header.split() == ["kind", "dtype", "init", *"1234567"]
    marks = (".", "=", "missing 50 %", "NaN 50 %", "dtype", "dtype NaN 50 %", "100 %", ".")
    assert row.split() == ["buffer", "float32,", "float64", *" ".join(marks).split()]
    assert note == "buffer: float64 here, float32 in the reference"


def test_the_largest_share_of_a_kind_is_marked(write_trace: Write) -> None:
    """Of several tensors in one cell, that of which most elements differ; within it is none."""
    off = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([2.0, 2.0]), "c": torch.ones(2)}
    near = torch.tensor([1.0, 1 + 2**-23])
    states = [[whole("grad", n, t) for n, t in off.items()], [whole("grad", "a", near)]]
    right = [[whole("grad", n, torch.ones(2)) for n in names] for names in ("abc", "a")]
    sides = write_trace(steps(*states)), write_trace(steps(*right))
    judgement = judge(*sides, Criteria.of({"grad": ulp(1)}))
    assert cells(spread.rows(judgement))[1] == ["grad", "float32", ".", "100", "%", "~"]


def test_digests_differ_by_no_share(write_trace: Write) -> None:
    """Of some tensors at least, nobody knows how much of them."""
    sides = [
        write_trace(
            steps([whole("grad", "w", torch.full((32,), n)), whole("grad", "b", torch.tensor(n))]),
            digests=True,
        )
        for n in (1.0, 2.0)
    ]
    judgement = judge(*sides, Criteria.of(None))
    assert cells(spread.rows(judgement))[1][-2:] == [".", "differs"]
    tensors = spread.spread_figures(judgement)["tensors"]["grad"]
    assert tensors["rel_l2"] == [[None, None], [None, 0.5]]


@pytest.mark.parametrize(
    ("differs", "labels"),
    [(2, ["init", "1", "2", "3 …"]), (4, ["… 2", "3", "4", "5 …"]), (7, ["… 4", "5", "6", "7"])],
    ids=["begin", "middle", "end"],
)
def test_columns_lie_around_the_first_divergence(
    write_trace: Write, differs: int, labels: list[str]
) -> None:
    """Two before it, and dots where the run goes on to either side."""
    sides = [
        write_trace(steps(*(state(torch.full((1,), 1.0 + (n >= off))) for n in range(1, 8))))
        for off in (differs, 99)
    ]
    judgement = judge(*sides, Criteria.of(None))
    header = spread.rows(judgement, most=4)[0]
    assert [label.strip() for label in header.split("  ") if label.strip()][2:] == labels


def test_an_operation_has_one_column_with_its_name(write_trace: Write) -> None:
    """Whatever its phases are; an evaluation is no step."""
    phases = [Moment(0, "train", 1, p) for p in ("forward_backward", "optimizer_step")]
    moments = [INIT, *phases, Moment(1, "eval", 1, "evaluate")]
    trace = write_trace([(moment, state(torch.ones(1))) for moment in moments])
    assert cells(spread.rows(judge(trace, trace, Criteria.of(None)))) == [
        ["kind", "dtype", "init", "1", "eval"],
        ["lr", "float32", "=", "=", "="],
        ["exp_avg", "float32", "=", "=", "="],
    ]


def test_the_largest_error_of_a_tensor_within_a_step_counts(write_trace: Write) -> None:
    """It may differ after several phases, and differ by less after the last."""
    phases = [Moment(0, "train", 1, p) for p in ("forward_backward", "optimizer_step")]
    ours, theirs = (
        write_trace(
            [
                (phase, [whole("param", n, torch.full((4,), s)) for n in "ab"])
                for phase, s in zip(phases, sizes, strict=True)
            ]
        )
        for sizes in ((1.5, 1.25), (1.0, 1.0))
    )
    table = spread.spread_figures(judge(ours, theirs, Criteria.of(None)))["tensors"]["param"]
    assert table == {"name": ["a", "b"], "rel_l2": [[0.5], [0.5]], "tensors": 2}


def test_one_tensor_or_none_that_is_off_has_no_rows(write_trace: Write) -> None:
    """A single row says no more than the table of kinds."""
    right, wrong = ([whole("param", "w", torch.full((2,), n))] for n in (1.0, 2.0))
    alone = judge(write_trace(steps(wrong)), write_trace(steps(right)), Criteria.of(None))
    assert "tensors" not in spread.spread_figures(alone)
    trace = write_trace(steps([*right, whole("param", "b", torch.ones(2))]))
    assert "tensors" not in spread.spread_figures(judge(trace, trace, Criteria.of(None)))
