"""Spread: the table of kinds by operations as columns of plain data."""

from __future__ import annotations

import json
from collections.abc import Callable

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
    found = spread.columns(judge(ours, theirs, Criteria.of({"lr": ulp(1)})))
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


def test_what_is_not_finite_has_a_share_and_no_distance(write_trace: Write) -> None:
    """A NaN is named, and is no figure that JSON lacks."""
    nan = torch.tensor([float("nan")])
    traces = write_trace(steps(state(nan))), write_trace(steps(state(torch.ones(1))))
    found = spread.columns(judge(*traces, Criteria.of(None)))
    assert json.loads(json.dumps(found["kinds"]["exp_avg"], allow_nan=False)) == {
        "dtypes": [["float32", "float32"]],
        "state": [".", "NaN"],
        "mismatched": [None, 1.0],
    }


def test_long_runs_keep_the_columns_around_the_divergence(write_trace: Write) -> None:
    """The data of a check does not grow with the number of its steps."""
    right = [state(torch.ones(1)) for _ in range(100)]
    wrong = [state(torch.ones(1) * (1 + (n >= 70))) for n in range(100)]
    found = spread.columns(
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
    found = spread.columns(judge(ours, theirs, Criteria.of(None)))
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
    found = spread.columns(judge(ours, theirs, Criteria.of(None)))["tensors"]["param"]
    assert "layer251" in found["name"]
    assert len(found["name"]) <= MOST_TENSORS
    assert found["tensors"] == 500
