"""History: a wrong tensor is told by the reference's other steps and names, and not by chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pytest_precision import whole
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.differing import Finding
from pytest_precision.parity.compare.divergences import judge
from pytest_precision.parity.compare.ratio import unit_of
from pytest_precision.parity.compare.signature import Signature
from pytest_precision.parity.explain.history import (
    Compared,
    loss_scale,
    not_zeroed,
    of_history,
)
from pytest_precision.trace.digests import digest
from pytest_precision.trace.moment import INIT, Moment
from pytest_precision.trace.reader import Trace

Write = Callable[..., Trace]
Tensors = Mapping[str, Tensor]

STEPS = [Moment(n - 1, "train", n, "optimizer_step") for n in (1, 2, 3)]


def noise(seed: int, size: int = 64) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


BEFORE, UPDATE = noise(1), noise(2) / 8
AFTER = BEFORE + UPDATE


@pytest.fixture
def first(write_trace: Write) -> Callable[..., Finding]:
    """The first difference of two runs, each a list of what its moments show of one kind."""

    def trace(kind: str, moments: Sequence[Moment], states: Sequence[Tensors]) -> Trace:
        observed = [[whole(kind, *item) for item in state.items()] for state in states]
        return write_trace([*zip(moments, observed, strict=True)])

    def first(
        kind: str, ours: Sequence[Tensors], theirs: Sequence[Tensors], *more: Moment
    ) -> Finding:
        moments = [*more, *STEPS][: len(ours)]
        sides = (trace(kind, moments, states) for states in (ours, theirs))
        finding = judge(*sides, Criteria.of(None)).first
        assert finding is not None
        return finding

    return first


def told(finding: Finding) -> Signature | None:
    tensors = finding.pair.tensors
    assert tensors is not None
    return of_history(finding.pair, *tensors)


def test_an_update_is_seen_from_the_step_before(first: Callable[..., Finding]) -> None:
    """Of what lasts, from the state at the start on; of a gradient, there is no update."""
    states = [{"w": BEFORE}, {"w": AFTER}]
    wrong = [{"w": BEFORE}, {"w": BEFORE + 2 * UPDATE}]
    assert told(first("exp_avg", wrong, states, INIT)) == Signature(
        "update", "moved by 2 times the reference's update"
    )
    assert told(first("exp_avg", wrong, states)) == told(first("master", wrong, states))
    assert told(first("reduced_grad", wrong, states)) is None


def test_a_state_of_another_shape_or_dtype_before_tells_no_update(
    first: Callable[..., Finding],
) -> None:
    """There is no way from one to the other."""
    for start in (BEFORE[:32], BEFORE.double()):
        states = [{"w": start}, {"w": AFTER}]
        wrong = [{"w": start}, {"w": BEFORE + 2 * UPDATE}]
        assert told(first("exp_avg", wrong, states)) is None


def test_a_counter_that_was_not_shown_before_began_at_zero(first: Callable[..., Finding]) -> None:
    """An optimizer that makes its counter in the first step has counted none before it."""
    number = {n: {"w": torch.tensor(float(n))} for n in range(3)}
    assert told(first("step", [{}, number[2]], [{}, number[1]], INIT)) == Signature(
        "update", "moved by 2 times the reference's update"
    )
    assert told(first("step", [{}, number[0]], [{}, number[1]], INIT)) == Signature(
        "not updated", "not updated"
    )
    assert told(first("exp_avg", [{}, number[2]], [{}, number[1]], INIT)) is None


def test_an_earlier_step_is_named_and_a_later_one_too(first: Callable[..., Finding]) -> None:
    """A gradient that was not made anew, and one of a batch that was drawn too early."""
    states = [{"w": noise(n)} for n in (1, 2, 3)]
    assert told(first("grad", [states[0], states[0]], states[:2])) == Signature(
        "stale", "the value of step 1"
    )
    assert told(first("grad", [states[0], states[2], states[2]], states)) == Signature(
        "stale", "the value of step 3"
    )


@pytest.mark.parametrize(
    ("other", "words"),
    [(noise(2), "the reference's b"), (torch.zeros(64), None), (noise(2).view(8, 8), None)],
    ids=["varied", "constant", "of another shape"],
)
def test_another_tensor_is_named_unless_it_is_constant(
    first: Callable[..., Finding], other: Tensor, words: str | None
) -> None:
    """Zeros are the value of many tensors, so that none of them is named."""
    state = {"w": noise(1), "b": other}
    signature = told(first("grad", [{**state, "w": other.reshape(-1)}], [state]))
    assert (signature and signature.words) == words


def test_a_constant_of_another_step_is_stale(first: Callable[..., Finding]) -> None:
    """Of the same name, a constant is no coincidence."""
    states = [{"w": torch.ones(64)}, {"w": noise(1)}]
    assert told(first("grad", [states[0], states[0]], states)) == Signature(
        "stale", "the value of step 1"
    )


def test_another_tensor_of_another_step_is_none(first: Callable[..., Finding]) -> None:
    """Each of the two alone is a mistake that is made; both at once are a coincidence."""
    states = [{"w": noise(1), "b": noise(2)}, {"w": noise(3), "b": noise(4)}]
    assert told(first("grad", [states[0], {**states[1], "w": noise(2)}], states)) is None


def test_of_digests_there_is_no_history(write_trace: Write) -> None:
    """A state of which only a digest was kept is neither an update's start nor a step's value."""
    states = [whole("exp_avg", "w", state) for state in (BEFORE, AFTER)]
    by_digest = states[0].with_tensor(BEFORE.to("meta"), digest(BEFORE))
    for start, words in ((states[0], "not updated"), (by_digest, None)):
        ours, theirs = (write_trace([(INIT, [start]), (STEPS[0], [last])]) for last in states)
        finding = judge(ours, theirs, Criteria.of(None)).first
        assert finding is not None
        signature = told(finding)
        assert (signature and signature.words) == words


@pytest.mark.parametrize(("start", "words"), [(5, "not updated"), (7, None)])
def test_the_state_before_is_that_of_the_same_rank(
    write_trace: Write, start: int, words: str | None
) -> None:
    """Where each rank has a tensor of its own, that of another rank was never there before."""
    sides = []
    for last in (noise(5), noise(6)):
        starts, ends = (7 if start == 5 else 5, start), (noise(8), last)
        runs = [
            [(INIT, [whole("buffer", "w", noise(seed))]), (STEPS[0], [whole("buffer", "w", end)])]
            for seed, end in zip(starts, ends, strict=True)
        ]
        sides.append(write_trace(*runs))
    finding = judge(*sides, Criteria.of(None)).first
    assert finding is not None
    signature = told(finding)
    assert (finding.pair.rank, signature and signature.words) == (1, words)


def test_the_reference_may_run_other_operations_in_between(write_trace: Write) -> None:
    """Its index of the operation is another one then; the step and its phase are the same."""
    evaluated = Moment(1, "eval", 1, "evaluate")
    ours, theirs = (
        [(INIT, [whole("master", "w", BEFORE)]), (STEPS[0], [whole("master", "w", AFTER)])]
        for _ in range(2)
    )
    ours.append((STEPS[1], [whole("master", "w", AFTER)]))
    theirs.append((evaluated, [whole("master", "w", AFTER)]))
    theirs.append((STEPS[1]._replace(op=2), [whole("master", "w", noise(9))]))
    finding = judge(write_trace(ours), write_trace(theirs), Criteria.of(None)).first
    assert finding is not None
    assert told(finding) == Signature("not updated", "not updated")


@pytest.mark.parametrize(
    ("kind", "changed", "words"),
    [
        ("lr", {"b": 0.5}, "that of a"),
        ("lr", {"b": 0.5, "a": 1.0}, None),
        ("lr", {"b": 0.75}, None),
        ("grad", {"b": 0.5}, None),
    ],
    ids=["other group", "which has another one here", "no group's", "no rate"],
)
def test_a_rate_may_be_that_of_the_other_group(
    first: Callable[..., Finding], kind: str, changed: Mapping[str, float], words: str | None
) -> None:
    """If the candidate itself has it there: it has one group where the reference has two."""
    theirs = {"a": 0.5, "b": 0.25, "c": 0.125}
    ours = {**theirs, **changed}
    states = [{name: torch.tensor(v) for name, v in rates.items()} for rates in (ours, theirs)]
    finding = first(kind, states[:1], states[1:])
    if "a" in changed:
        finding = replace(finding, pair=replace(finding.pair, name="b"))
    signature = of_history(finding.pair, states[0]["b"], states[1]["b"])
    assert (signature and signature.words) == words


def gradients(first: Callable[..., Finding], added: Tensor, size: int = 64) -> Compared:
    """A gradient of step 2 to which something was added, beside that of step 1 in the reference."""
    states = [{"w": noise(n, size)} for n in (1, 2)]
    compared = Compared.of(first("grad", [states[0], {"w": noise(2, size) + added}], states))
    assert compared is not None
    return compared


@pytest.mark.parametrize(
    ("added", "words"),
    [
        (noise(1), "the difference is the gradient of step 1"),
        (noise(1) / 4, "the difference is 0.25 times the gradient of step 1"),
        (noise(3), None),
        (noise(1) + noise(3) / 4, None),
        (noise(1).where(noise(1) > 0, torch.inf), None),
    ],
    ids=["whole", "clipped", "another", "with more", "not finite"],
)
def test_a_gradient_that_was_not_zeroed_has_that_of_the_step_before(
    first: Callable[..., Finding], added: Tensor, words: str | None
) -> None:
    """Or a multiple, where it was clipped in place; nothing else may be in it."""
    signature = not_zeroed([gradients(first, added)], unit_of(torch.float32))
    assert (signature and (signature.error, signature.words)) == (words and ("not zeroed", words))


def test_a_difference_of_rounding_is_no_gradient(first: Callable[..., Finding]) -> None:
    """In bf16 more may be left over than in fp32, and a small difference may be all rounding."""
    noisy = noise(1) + noise(3) * 0.02
    assert not_zeroed([gradients(first, noisy)], unit_of(torch.float32)) is None
    assert not_zeroed([gradients(first, noisy)], unit_of(torch.bfloat16)) is not None
    assert not_zeroed([gradients(first, noise(3) * 1e-3)], unit_of(torch.bfloat16)) is None


def test_few_elements_and_other_kinds_have_no_gradient_before(
    first: Callable[..., Finding],
) -> None:
    """Seven numbers fit many things; an average contains what came before by design."""
    unit = unit_of(torch.float32)
    assert not_zeroed([gradients(first, noise(1, 7), 7)], unit) is None
    assert not_zeroed([gradients(first, noise(1, 8), 8)], unit) is not None
    states = [{"w": noise(1)}, {"w": noise(2)}]
    for kind in ("exp_avg", "loss"):
        compared = Compared.of(first(kind, [states[0], {"w": noise(1) + noise(2)}], states))
        assert compared is not None
        assert not_zeroed([compared], unit) is None
    for before in ({"w": noise(1, 32)}, {}, {"b": noise(1)}, {"w": torch.zeros(64)}):
        ours = [before, {"w": noise(1) + noise(2)}]
        compared = Compared.of(first("grad", ours, [before, {"w": noise(2)}]))
        assert compared is not None
        assert not_zeroed([compared], unit) is None
    compared = Compared.of(first("grad", [{"w": noise(1) + noise(2)}], [{"w": noise(2)}]))
    assert compared is not None
    assert not_zeroed([compared], unit) is None  # the first step


def test_what_is_compared_has_values_on_both_sides_and_a_unit(
    first: Callable[..., Finding],
) -> None:
    """That of the coarsest products of either run, or of the tensors where none was seen."""
    finding = first("grad", [{"microbatch 3: w": noise(1)}], [{"microbatch 3: w": noise(2)}])
    compared = Compared.of(finding)
    assert compared is not None
    assert (compared.unit, compared.part) == (unit_of(torch.float32), (0, 3))
    trace = finding.pair.both[1].trace
    trace.header = replace(trace.header, products=("bfloat16", "float32"))
    assert Compared.of(finding)[-1] == unit_of(torch.bfloat16)
    assert Compared.of(first("grad", [{"w": noise(1)}], [{"w": noise(1).double()}])) is None
    counters = first("step", [{"w": torch.tensor(1)}], [{"w": torch.tensor(2)}])
    assert Compared.of(counters)[-1] == 0.0
    assert Compared.of(first("grad", [{}], [{"w": noise(1)}])) is None


def test_a_loss_scale_is_the_last_one_before_the_difference(write_trace: Write) -> None:
    """What the reference scaled by then; a count of good steps is no scale."""

    def run(step: int, scales: Mapping[int, float]) -> Trace:
        return write_trace(
            [
                (
                    moment,
                    [
                        *(
                            whole("loss_scale", "scale", torch.tensor(scales[n]))
                            for n in scales
                            if n == moment.step
                        ),
                        whole("loss_scale", "good_steps", torch.tensor(7.0)),
                        whole("param", "w", torch.tensor(1.0 + (moment.step >= step))),
                    ],
                )
                for moment in [INIT, *STEPS]
            ]
        )

    for scales, scale in (({0: 4.0, 2: 8.0, 3: 16.0}, 8.0), ({1: 4.0}, 4.0), ({3: 4.0}, None)):
        finding = judge(run(2, scales), run(9, scales), Criteria.of(None)).first
        assert finding is not None
        assert finding.pair.moment.step == 2
        assert loss_scale(finding.pair) == scale


def test_an_option_is_not_that_of_another_option(first: Callable[..., Finding]) -> None:
    """Numbers such as 0 are the value of many options of many groups."""
    names = ("eps of a", "eps of b", "beta of b")
    theirs = dict(zip(names, map(torch.tensor, (0.5, 0.25, 0.125)), strict=True))
    for value, words in ((0.5, "that of a"), (0.125, None)):
        ours = {**theirs, "eps of b": torch.tensor(value)}
        signature = told(first("hyper", [ours], [theirs]))
        assert (signature and signature.words) == words
    del ours["eps of a"]
    assert told(first("hyper", [{**ours, "eps of b": torch.tensor(0.5)}], [theirs])) is None
