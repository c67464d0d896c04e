"""Runs that prove nothing, and operations that disturb what they must leave alone, are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_precision import Cell, Observation, bitwise, close, unchecked, whole
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.criterion import Criterion
from pytest_precision.parity.compare.differing import Finding
from pytest_precision.parity.explain import wording
from pytest_precision.parity.self_checks.vacuity import disturbed, hidden, vacuous
from pytest_precision.trace.moment import INIT, Moment
from pytest_precision.trace.reader import Trace

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
    assert vacuous(write_trace(sound()), Cell(sequence="train-eval"), Criteria()) is None


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
    assert (
        vacuous(write_trace(sound(**planted)), Cell(sequence="train-eval", **cell), Criteria())
        == reason
    )


def test_quantized_bytes_of_which_a_digest_is_kept_are_there(write_trace: Write) -> None:
    """Nobody reads them: that they were observed is enough."""
    recorded = sound()
    recorded[1][1].append(whole("used_quantized", "w.rowwise.data", torch.ones(99).byte()))
    trace = write_trace(recorded, digests=True)
    assert vacuous(trace, Cell("mxfp8", sequence="train-eval"), Criteria()) is None


def test_a_run_without_a_loss_is_vacuous(write_trace: Write) -> None:
    """An engine that shows nothing can be compared with anything."""
    recorded = [(moment, []) for moment, _ in sound()]
    assert (
        vacuous(write_trace(recorded), Cell(sequence="train-eval"), Criteria())
        == "no loss was observed"
    )


SILENT = [(moment, [s for s in seen if s.kind != "loss"]) for moment, seen in sound()]
LEFT_OUT = unchecked(reason="shown by nobody")


def test_nothing_is_asked_of_what_an_engine_cannot_show(write_trace: Write) -> None:
    """`hidden` sees to it that the test has accepted it."""
    cell = Cell(sequence="train-eval")
    silent = write_trace(SILENT, unobservable={"loss": "no phases"})
    assert vacuous(silent, cell, Criteria()) is None
    flat = write_trace(sound(norm=0.0), unobservable={"grad_norm": "clips inside"})
    assert vacuous(flat, cell, Criteria()) is None


def test_nothing_is_asked_of_what_a_test_leaves_unchecked(write_trace: Write) -> None:
    """One rule for both: what need not be shown need not be right either."""
    cell = Cell(sequence="train-eval")
    assert vacuous(write_trace(SILENT), cell, Criteria.of({"loss": LEFT_OUT})) is None
    flat = write_trace(sound(norm=0.0))
    assert vacuous(flat, cell, Criteria.of({"grad_norm": LEFT_OUT})) is None
    still = write_trace(sound(moved=1.0))
    assert vacuous(still, cell, Criteria.of({"master": LEFT_OUT})) is None


def hidden_by(trace: Trace, criteria: Criteria, *compared: str) -> dict[str, str]:
    return hidden(trace, criteria, set(compared))


def test_local_gradients_may_be_hidden(write_trace: Write) -> None:
    """Reduced inside backward, they have no moment of their own."""
    trace = write_trace(sound(), unobservable={"grad": "reduced inside backward"})
    assert hidden_by(trace, Criteria()) == {}


def test_what_is_hidden_beyond_that_must_be_accepted(write_trace: Write) -> None:
    """One that declares everything unobservable would agree with anything."""
    found = {"exp_avg": "kept inside", "loss": "summed inside"}
    trace = write_trace(sound(), unobservable=found)
    assert hidden_by(trace, Criteria(), "grad", "param") == found
    own = unchecked(reason="no other engine has it")
    assert hidden_by(trace, Criteria.of({"exp_avg": own, "loss": own})) == {}
    assert hidden_by(trace, Criteria.of({"exp_avg": own})) == {"loss": "summed inside"}
    checked = Criteria.of({"default": own, "exp_avg": bitwise(), "loss": bitwise()})
    assert hidden_by(trace, checked) == found


def test_who_accepts_a_whole_kind_accepts_what_one_module_hides_of_it(write_trace: Write) -> None:
    """So that a loop whose modules are all called inside a transform takes one criterion."""
    part = {"used_param in Linear": "called inside a transform"}
    assert hidden_by(write_trace(sound(), unobservable=part), Criteria()) == part
    whole = {"used_param": "no module was called"}
    assert hidden_by(write_trace(sound(), unobservable=whole | part), Criteria()) == whole
    accepted = Criteria.of({"used_param": unchecked(reason="as a function")})
    assert hidden_by(write_trace(sound(), unobservable=whole | part), accepted) == {}


@pytest.mark.parametrize(
    ("kind", "shown"),
    [("param", "used_param"), ("quantized", "used_quantized"), ("scale", "used_quantized")],
)
def test_what_is_compared_where_it_is_used_may_be_hidden(
    write_trace: Write, kind: str, shown: str
) -> None:
    """A gather that overlaps with the next forward is seen there, unless that is left out too."""
    trace = write_trace(sound(), unobservable={kind: "gathered late"})
    assert hidden_by(trace, Criteria(), shown) == {}
    assert hidden_by(trace, Criteria(), "master") == {kind: "gathered late"}


def disturbed_alone(trace: Trace) -> Finding | None:
    """Of a run that never swaps, or is held against one that did exactly the same."""
    return disturbed(trace, trace, Criteria())


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
    assert disturbed_alone(write_trace(after(operation, *state(1.0)))) is None


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
    finding = disturbed_alone(trace)
    assert finding is not None
    assert wording.disturbance(finding, "candidate").startswith(words)


def loaded(*observations: Observation, by: str = "load") -> list[tuple[Moment, list[Observation]]]:
    saved, later = Moment(1, "save", 1, "save"), Moment(2, "train", 2, "optimizer_step")
    return [(saved, state(1.0)), (later, state(3.0)), (Moment(3, by, 2, by), list(observations))]


def test_a_load_brings_back_what_was_saved(write_trace: Write) -> None:
    """Two layouts that share a load, and lose the same counter in it, agree with each other."""
    assert disturbed_alone(write_trace(loaded(*state(1.0)))) is None
    finding = disturbed_alone(write_trace(loaded(*state(1.0, counter=0))))
    assert finding is not None
    words = "load after step 2 changed step in the candidate: w is 0 on rank 0, not 1"
    assert wording.disturbance(finding, "candidate") == words


@pytest.mark.parametrize(
    ("name", "loaded_count", "is_lost"),
    [
        ("last_epoch of StepLR", 0, True),
        ("last_epoch of StepLR", 2, False),
        ("_step_count of StepLR", 0, False),
    ],
)
def test_a_load_brings_back_schedules(
    write_trace: Write, name: str, loaded_count: int, is_lost: bool
) -> None:
    """Also one whose rate changes later; what it counts for its warnings may begin anew."""
    saved, later = (whole("policy", name, torch.tensor(n), local=True) for n in (2, loaded_count))
    constant = whole("policy", "gamma of StepLR", torch.tensor(0.5), local=True)
    save, load = Moment(1, "save", 1, "save"), Moment(2, "load", 1, "load")
    trace = write_trace([(save, [*state(1.0), saved]), (load, [*state(1.0), later, constant])])
    assert (disturbed_alone(trace) is not None) == is_lost


@pytest.mark.parametrize("operation", ["eval", "save", "skip", "load"])
def test_what_a_test_leaves_unchecked_may_change(write_trace: Write, operation: str) -> None:
    """A kind that no side is held to is not held to itself either; the others are."""
    changed = state(1.0, counter=2)
    run = loaded(*changed) if operation == "load" else after(operation, *changed)
    trace = write_trace(run)
    off = Criteria.of({"step": unchecked(reason="counts what we like")})
    assert disturbed(trace, trace, off) is None
    other = Criteria.of({"param": unchecked(reason="may be anything")})
    assert disturbed(trace, trace, other) is not None


def test_a_load_may_make_state_that_was_not_there_yet(write_trace: Write) -> None:
    """Of an optimizer that had not stepped, torch's loader makes zeros; what it drops is found."""
    more = whole("exp_avg", "w", torch.zeros(2))
    assert disturbed_alone(write_trace(loaded(*state(1.0), more))) is None
    assert disturbed_alone(write_trace(loaded(*state(1.0)[1:]))) is not None


def test_what_a_swap_loads_is_what_that_layout_had_when_it_saved(write_trace: Write) -> None:
    """A file that one layout writes and reads in the wrong order makes both sides wrong alike."""
    ours, theirs = (write_trace(loaded(*state(1.0, counter=2), by="swap")) for _ in range(2))
    finding = disturbed(ours, theirs, Criteria())
    assert finding is not None
    words = "swap after step 2 changed step in the candidate: w is 2 on rank 0, not 1"
    assert wording.disturbance(finding, "candidate") == words


def other_layout(value: float) -> list[Observation]:
    """The same state with a dtype and a kind of its own."""
    return [
        *(seen for seen in state(value) if seen.kind != "param"),
        whole("param", "w", torch.tensor([value, 2.0], dtype=torch.bfloat16)),
        whole("compensation", "w", torch.tensor([value])),
    ]


def swapped(
    saved: list[Observation], loaded: list[Observation], *more: str
) -> list[tuple[Moment, list[Observation]]]:
    """A save in one layout, and the same state in another one from the operation behind it on."""
    moments = [Moment(op, name, 1, name) for op, name in enumerate(["save", "swap", *more])]
    return [(moment, saved if moment.op == 0 else loaded) for moment in moments]


def test_a_swap_is_held_against_the_same_layout(write_trace: Write) -> None:
    """Another one may have other kinds and dtypes; what it saved itself has the same."""
    ours = write_trace(swapped(state(1.0), other_layout(1.0)))
    theirs = write_trace(swapped(other_layout(1.0), state(1.0)))
    assert disturbed(ours, theirs, Criteria()) is None
    wrong = write_trace(swapped(state(1.0), other_layout(1.5)))
    assert disturbed(wrong, theirs, Criteria()) is not None
    assert disturbed(theirs, wrong, Criteria()) is None


def test_layouts_that_have_saved_and_loaded_in_exchange_are_held_against_themselves(
    write_trace: Write,
) -> None:
    """A load behind a swap and a save is by the layout that has saved."""
    steps = swapped(state(1.0), other_layout(1.0), "save", "load")
    trace, other = write_trace(steps), write_trace(swapped(other_layout(2.0), state(2.0)))
    found = disturbed(trace, other, Criteria())
    assert found is None
    steps[-1] = (steps[-1][0], other_layout(1.5))
    assert disturbed(write_trace(steps), other, Criteria()) is not None


@pytest.mark.parametrize(
    "criterion",
    [
        close(rtol=0.1, atol=0),
        {kind: unchecked(reason="a test") for kind in ("param", "buffer", "lr", "compensation")},
        unchecked(reason="a test"),
    ],
    ids=["close", "kinds unchecked", "all unchecked"],
)
def test_a_swap_is_held_to_the_criterion_of_the_check(
    write_trace: Write, criterion: Criterion | dict[str, Criterion]
) -> None:
    """The state that was loaded is that of the other side, which agreed by no more than that."""
    ours = write_trace(swapped(state(1.0), other_layout(1.0)))
    theirs = write_trace(swapped(other_layout(1.0625), state(1.0625)))
    assert disturbed(ours, theirs, Criteria()) is not None
    assert disturbed(ours, theirs, Criteria.of(criterion)) is None


def test_sides_that_do_other_things_are_not_held_against_each_other(write_trace: Write) -> None:
    """One that trains straight on has no save, and what it trains shows what a swap has lost."""
    alone = write_trace(after("train", *state(1.0)))
    assert disturbed(write_trace(loaded(*state(7.0), by="swap")), alone, Criteria()) is None


def test_training_may_change_anything(write_trace: Write) -> None:
    """Only operations that must not are held to it."""
    assert disturbed_alone(write_trace(after("train", *state(7.0)))) is None


def test_the_forward_of_a_skipped_step_may_count(write_trace: Write) -> None:
    """Buffers move with every forward, and a step that overflows has had one."""
    observations = [*state(1.0)[:2], *state(5.0)[2:]]
    assert disturbed_alone(write_trace(after("skip", *observations))) is None
    assert disturbed_alone(write_trace(after("eval", *observations))) is not None
