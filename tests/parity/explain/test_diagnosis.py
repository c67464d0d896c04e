"""A divergence is told by the tensor that tells most, and by what all tensors of its kind share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_precision import whole
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.divergences import judge
from pytest_precision.parity.explain import wording
from pytest_precision.parity.explain.diagnosis import Diagnosis, by_rule, diagnose
from pytest_precision.parity.explain.locate import divergence_of
from pytest_precision.probes.gradients.gradient_log import GradientBreach
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.reader import Trace

Write = Callable[..., Trace]
Tensors = Mapping[str, Tensor]
MOMENTS = [Moment(n - 1, "train", n, "reduce_grads") for n in (1, 2)]


def noise(seed: int, size: int = 32) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


FIRST = {"up": noise(1), "temperature": noise(2, 1), "down": noise(3)}
SECOND = {"up": noise(4), "temperature": noise(5, 1), "down": noise(6)}


@pytest.fixture
def look(write_trace: Write) -> Callable[..., tuple[Diagnosis, str]]:
    """The diagnosis of a candidate's second step, and the first line of the failure."""

    def written(second: Tensors) -> Trace:
        steps = zip(MOMENTS, (FIRST, second), strict=True)
        return write_trace(
            [(m, [whole("reduced_grad", *one) for one in step.items()]) for m, step in steps]
        )

    def look(**changed: Tensor) -> tuple[Diagnosis, str]:
        judgement = judge(written({**SECOND, **changed}), written(SECOND), Criteria.of(None))
        found = diagnose(judgement)
        return found, wording.headline(found, judgement)

    return look


def test_a_factor_is_that_of_all_tensors(look) -> None:
    """Also of a tensor with one element, whose ratio alone would prove nothing."""
    found, line = look(**{name: tensor / 2 for name, tensor in SECOND.items()})
    assert found.signature == "0.5 times the reference in each of 3 tensors that differ"
    assert line.startswith(
        f"reduced_grad differs at step 2 after reduce_grads, {found.signature}: "
    )


def test_one_wrong_element_is_no_factor(look) -> None:
    """Two tensors with factors of their own are each told by itself."""
    found, _ = look(up=SECOND["up"] / 2, down=SECOND["down"] * 3)
    assert (found.finding.pair.name, found.signature) == ("up", "0.5 times the reference")


def test_one_number_of_several_ranks_has_no_factor(write_trace: Write) -> None:
    """Ranks that share a microbatch have one loss, and each pair of numbers has some ratio."""
    moment, names = Moment(0, "train", 1, "forward_backward"), ["microbatch0", "microbatch1"]
    ours, theirs = (
        write_trace([(moment, [whole("loss", one, torch.tensor(value)) for one in names])])
        for value in (1.00953, 1.0)
    )
    assert diagnose(judge(ours, theirs, Criteria.of(None))).signature == "values"


def test_the_telling_tensor_stands_for_the_others(look) -> None:
    """Whatever its place in the order of parameters."""
    found, _ = look(up=noise(7), down=SECOND["down"].bfloat16().float())
    assert (found.finding.pair.name, found.signature) == ("down", "rounded to bfloat16")


def test_what_others_share_is_said_with_their_names(look) -> None:
    """Zero in some tensors says which, on a line of its own."""
    found, _ = look(up=torch.zeros(32), down=torch.zeros(32))
    assert found.signature == "all zero in each of 2 tensors that differ"
    assert wording.likewise_lines(found) == ["The same of: down"]
    assert divergence_of(found).evidence == {"looked_at": 2, "likewise": ["down"]}


def test_gradients_that_tell_nothing_begin_at_the_last(look) -> None:
    """Backward runs from the last tensor to the first."""
    found, line = look(up=noise(7), down=noise(8))
    assert (found.finding.pair.name, found.signature) == ("down", "values")
    assert "of down, relative L2 error" in line


def test_a_tensor_of_another_step_is_named(look) -> None:
    """As where a buffer was not emptied, or an update not waited for."""
    assert look(up=FIRST["up"])[0].signature == "the value of step 1"


@pytest.mark.parametrize(("first", "is_told"), [(1.5, True), (2.0**-24, False)])
def test_a_loss_that_is_zero_but_for_rounding_is_of_no_step(
    write_trace: Write, first: float, is_told: bool
) -> None:
    """As that of a policy at a ratio of 1: it has the same few numbers again and again."""
    moments = [Moment(n - 1, "train", n, "forward_backward") for n in (1, 2)]
    ours, theirs = (
        write_trace(
            [
                (moment, [whole("loss", "microbatch0", torch.tensor(value))])
                for moment, value in zip(moments, (first, second), strict=True)
            ]
        )
        for second in (first, 3.7 * first)
    )
    signature = diagnose(judge(ours, theirs, Criteria.of(None))).signature
    assert (signature == "the value of step 1") == is_told


def test_a_tensor_of_another_name_is_named(look) -> None:
    """As where two shards have changed places."""
    assert look(up=SECOND["down"])[0].signature == "the reference's down"


def test_a_later_phase_of_the_step_is_not_looked_at(write_trace: Write) -> None:
    """What differs there follows from what differs first."""
    phases = [MOMENTS[0]._replace(phase=phase) for phase in ("forward_backward", "reduce_grads")]
    sides = [
        write_trace(
            [
                (phase, [whole("grad", name, scale * noise(n)) for n, name in enumerate(names)])
                for phase, names in zip(phases, (["up"], ["up", "down"]), strict=True)
            ]
        )
        for scale in (2, 1)
    ]
    assert diagnose(judge(*sides, Criteria.of(None))).signature == "2 times the reference"


def test_the_microbatch_in_which_gradients_part_is_named(write_trace: Write) -> None:
    """Its last tensor stands for the others, and not the last of the sum over all microbatches."""
    moment = Moment(0, "train", 1, "forward_backward")
    names = ["microbatch 0: up", "microbatch 0: down", "microbatch 1: up", "up", "down"]
    ours, theirs = (
        write_trace([(moment, [whole("grad", n, noise(seed + i)) for i, n in enumerate(names)])])
        for seed in (10, 20)
    )
    found = diagnose(judge(ours, theirs, Criteria.of(None)))
    assert found.finding.pair.name == "microbatch 0: down"


def loss(number: int) -> list[Any]:
    """A step with so many microbatches, of which each has a loss."""
    losses = [whole("loss", f"microbatch{n}", torch.tensor(float(number))) for n in range(number)]
    return [(Moment(0, "train", 1, "forward_backward"), losses)]


def test_another_number_of_microbatches_is_an_error(write_trace: Write) -> None:
    """Whatever the losses look like, each of which is a mean of more or fewer samples."""
    for ours, theirs, error in ((4, 2, "microbatches"), (2, 2, "")):
        reference = loss(theirs)
        if ours == theirs:
            reference[0][1][0] = whole("loss", "microbatch0", torch.tensor(2.001))
        sides = write_trace(loss(ours)), write_trace(reference)
        assert diagnose(judge(*sides, Criteria.of(None))).error == error


def test_other_weights_are_an_error(write_trace: Write) -> None:
    """Rates that only one side has, of weights that both have; no rate is missing by itself."""
    weights = [whole("param", name, torch.ones(2)) for name in "ab"]
    ours, theirs = (
        write_trace([(MOMENTS[0], [*weights, whole("lr", name, torch.tensor(0.5))])])
        for name in "ab"
    )
    assert diagnose(judge(ours, theirs, Criteria.of(None))).error == "weights"
    neither = write_trace([(MOMENTS[0], weights)])
    assert diagnose(judge(neither, theirs, Criteria.of(None))).error == "missing"


BREACH = GradientBreach(2, "reduced_grad", "up", None, 0.5, 1e-6, "it is a mean of means")


@pytest.mark.parametrize(
    ("breach", "signature"),
    [
        (BREACH, "it is a mean of means"),
        (None, "values"),
        (replace(BREACH, words=""), "values"),
        (replace(BREACH, step=1), "values"),
        (replace(BREACH, kind="grad"), "values"),
    ],
    ids=["rule", "no breach", "no rule fits", "another step", "another kind"],
)
def test_a_wrong_rule_of_accumulation_names_gradients_that_tell_nothing(
    look, breach: GradientBreach | None, signature: str
) -> None:
    """If it is of the same step and kind; what another pattern has named keeps its name."""
    ruled = by_rule(look(up=noise(7), down=noise(8))[0], breach)
    assert (ruled.signature, ruled.error) == (signature, "accumulation" * (signature != "values"))
    doubled, _ = look(up=SECOND["up"] * 2)
    assert by_rule(doubled, breach) == doubled


def test_a_state_follows_no_rule_of_accumulation(write_trace: Write) -> None:
    """Its gradients do, in a step of their own."""
    sides = (write_trace([(MOMENTS[1], [whole("exp_avg", "up", noise(n))])]) for n in (1, 2))
    state = diagnose(judge(*sides, Criteria.of(None)))
    assert by_rule(state, replace(BREACH, kind="exp_avg")) == state
