"""Runs that prove nothing, and operations that disturb what they must leave alone, are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_precision.cell import Cell
from pytest_precision.observation import Observation, whole
from pytest_precision.parity import explain
from pytest_precision.parity.guards import disturbed, vacuous
from pytest_precision.trace.moment import INIT, Moment
from pytest_precision.trace.store import Trace

Write = Callable[..., Trace]


def sound(**changes: Any) -> list[tuple[Moment, list[Observation]]]:
    """One train step and an evaluation; `changes` plant what should be noticed."""
    values = {"loss": 2.0, "norm": 1.0, "moved": 1.5, "eval_loss": [2.5]} | changes
    state = [whole("master", "w", torch.tensor([values["moved"], 1.0]))]
    step = Moment(0, "train", 1, "forward_backward")
    return [
        (INIT, [whole("master", "w", torch.tensor([1.0, 1.0]))]),
        (step, [whole("loss", "microbatches", torch.tensor([1.0, values["loss"]]))]),
        (
            step._replace(phase="clip_grads"),
            [whole("grad_norm", "all", torch.tensor(values["norm"]))],
        ),
        (step._replace(phase="optimizer_step"), state),
        (
            Moment(1, "eval", 1, "evaluate"),
            [whole("loss", "microbatches", torch.tensor([loss])) for loss in values["eval_loss"]]
            + state,
        ),
    ]


def test_a_sound_run_is_not_vacuous(write_trace: Write) -> None:
    """The guards let pass what trains."""
    assert vacuous(write_trace(sound()), Cell(sequence="train-eval")) is None


@pytest.mark.parametrize(
    ("planted", "cell", "reason"),
    [
        ({"loss": float("nan")}, {}, "the loss is not finite at step 1"),
        ({"loss": float("inf")}, {}, "the loss is not finite at step 1"),
        ({"norm": 0.0}, {}, "the gradient norm is zero at step 1"),
        ({"moved": 1.0}, {}, "no weight moved between the first step and the last"),
        ({"eval_loss": []}, {}, "0 of 1 evaluations computed a loss"),
        ({}, {"precision": "mxfp8"}, "nothing was quantized, but the precision is mxfp8"),
    ],
    ids=["nan", "inf", "zero norm", "unmoved", "no eval", "unquantized"],
)
def test_a_run_in_which_nothing_happened_is_vacuous(
    write_trace: Write, planted: dict[str, Any], cell: dict[str, Any], reason: str
) -> None:
    """Two of these would agree with each other bit for bit."""
    assert vacuous(write_trace(sound(**planted)), Cell(sequence="train-eval", **cell)) == reason


def test_a_run_without_a_loss_is_vacuous(write_trace: Write) -> None:
    """An engine that shows nothing can be compared with anything."""
    recorded = [(moment, []) for moment, _ in sound()]
    assert vacuous(write_trace(recorded), Cell(sequence="train-eval")) == "no loss was observed"


def state(value: float, *, counter: int = 1) -> list[Observation]:
    return [
        whole("step", "w", torch.tensor(counter)),
        whole("param", "w", torch.tensor([value, 2.0])),
        whole("buffer", "load", torch.tensor([value]), local=True),
        whole("lr", "group0", torch.tensor(value)),
    ]


def after(operation: str, *observations: Observation) -> list[tuple[Moment, list[Observation]]]:
    train = Moment(0, "train", 1, "optimizer_step")
    return [(train, state(1.0)), (Moment(1, operation, 1, operation), list(observations))]


@pytest.mark.parametrize("operation", ["eval", "save", "skip"])
def test_operations_that_leave_all_alone_pass(write_trace: Write, operation: str) -> None:
    """The state after is the state before."""
    assert disturbed(write_trace(after(operation, *state(1.0)))) is None


@pytest.mark.parametrize(
    ("operation", "planted", "words"),
    [
        (
            "eval",
            {"value": 1.5},
            "eval after step 1 changed param in the candidate: 1 of 2 elements",
        ),
        ("save", {"value": 1.5}, "save after step 1 changed param in the candidate"),
        (
            "skip",
            {"counter": 2},
            "skip after step 1 changed step in the candidate: w is 2 on rank 0, not 1",
        ),
    ],
)
def test_operations_that_disturb_the_state_are_named(
    write_trace: Write, operation: str, planted: dict[str, Any], words: str
) -> None:
    """Also where candidate and reference do it alike."""
    trace = write_trace(after(operation, *state(**({"value": 1.0} | planted))))
    finding = disturbed(trace)
    assert finding is not None
    assert explain.disturbance(finding, "candidate").startswith(words)


def loaded(*observations: Observation, by: str = "load") -> list[tuple[Moment, list[Observation]]]:
    saved, later = Moment(1, "save", 1, "save"), Moment(2, "train", 2, "optimizer_step")
    return [(saved, state(1.0)), (later, state(3.0)), (Moment(3, by, 2, by), list(observations))]


def test_a_load_brings_back_what_was_saved(write_trace: Write) -> None:
    """Two layouts that share a load, and lose the same counter in it, agree with each other."""
    assert disturbed(write_trace(loaded(*state(1.0)))) is None
    finding = disturbed(write_trace(loaded(*state(1.0, counter=0))))
    assert finding is not None
    words = "load after step 2 changed step in the candidate: w is 0 on rank 0, not 1"
    assert explain.disturbance(finding, "candidate") == words


def test_a_load_may_make_state_that_was_not_there_yet(write_trace: Write) -> None:
    """Of an optimizer that had not stepped, torch's loader makes zeros; what it drops is found."""
    more = whole("exp_avg", "w", torch.zeros(2))
    assert disturbed(write_trace(loaded(*state(1.0), more))) is None
    assert disturbed(write_trace(loaded(*state(1.0)[1:]))) is not None


def test_after_a_swap_the_state_may_be_stored_otherwise(write_trace: Write) -> None:
    """The layout is another one, and what it loaded is held against the other side."""
    assert disturbed(write_trace(loaded(*state(7.0), by="swap"))) is None


def test_training_may_change_anything(write_trace: Write) -> None:
    """Only operations that must not are held to it."""
    assert disturbed(write_trace(after("train", *state(7.0)))) is None


def test_the_forward_of_a_skipped_step_may_count(write_trace: Write) -> None:
    """Buffers move with every forward, and a step that overflows has had one."""
    observations = [*state(1.0)[:2], *state(5.0)[2:]]
    assert disturbed(write_trace(after("skip", *observations))) is None
    assert disturbed(write_trace(after("eval", *observations))) is not None
