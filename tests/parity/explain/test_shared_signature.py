"""What all tensors of a moment have in common is said of each, and nothing that they do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_precision import Observation, whole
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.divergences import judge
from pytest_precision.parity.compare.signature import NO_SIGNATURE
from pytest_precision.parity.explain import diagnosis
from pytest_precision.parity.explain.diagnosis import Diagnosis, diagnose
from pytest_precision.trace.moment import INIT, Moment
from pytest_precision.trace.reader import Trace

Write = Callable[..., Trace]
Tensors = Mapping[str, Tensor]

STEPS = [Moment(n - 1, "train", n, "optimizer_step") for n in (1, 2)]


def noise(seed: int, size: int = 64) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def near(tensor: Tensor, seed: int, size: float = 2e-7) -> Tensor:
    """The tensor with a relative error of this size in each element."""
    return tensor * (1 + size * noise(seed, len(tensor)))


STATE = {"up": noise(1), "mid": noise(2), "down": noise(3)}


@pytest.fixture
def look(write_trace: Write) -> Callable[..., Diagnosis]:
    """The diagnosis of one step, in which the reference's tensors are `theirs`."""

    def look(
        kind: str, ours: Tensors, theirs: Tensors, *, start: Tensors | None = None, **more: Any
    ) -> Diagnosis:
        sides = []
        for state in (ours, theirs):
            moments = [(INIT, [whole(kind, *item) for item in (start or {}).items()])]
            beside = [whole("loss_scale", key, torch.tensor(scale)) for key, scale in more.items()]
            moments.append((STEPS[0], [*(whole(kind, *item) for item in state.items()), *beside]))
            sides.append(write_trace(moments))
        return diagnose(judge(*sides, Criteria.of(None)))

    return look


def test_a_factor_up_to_rounding_is_that_of_all(look: Callable[..., Diagnosis]) -> None:
    """One that is small or cancels may leave more; one that has another factor is not counted."""
    ours = {name: near(tensor * 0.5, 9) for name, tensor in STATE.items()}
    shared = look("grad", ours, STATE)
    assert shared.signature.startswith("0.5 times the reference up to 2e-07 in each of 3 tensors")
    assert (shared.error, shared.likewise, shared.looked_at) == ("factor", ("mid", "down"), 3)
    small = {**STATE, "small": noise(4) * 1e-7}
    without = look("grad", {**ours, "small": noise(4) * 3e-7}, small)
    assert " in 3 of 4 tensors that differ" in without.signature
    assert without.likewise == ("mid", "down")


def test_factors_of_their_own_are_no_factor_of_all(look: Callable[..., Diagnosis]) -> None:
    """Each tensor is told by itself then, and the first telling one stands for them."""
    ours = {name: near(tensor * n, 9) for n, (name, tensor) in enumerate(STATE.items(), start=2)}
    alone = look("grad", ours, STATE)
    assert (alone.finding.pair.name, alone.likewise) == ("up", ())
    assert alone.signature == "2 times the reference up to 2e-07"


def test_unlike_tensors_that_tell_nothing_are_told_by_the_first(
    look: Callable[..., Diagnosis],
) -> None:
    """Gradients alone begin at the last one."""
    ours = {name: noise(n) for n, name in enumerate(STATE, start=7)}
    for kind, name in (("buffer", "up"), ("exp_avg", "up"), ("reduced_grad", "down")):
        alone = look(kind, ours, STATE)
        assert (alone.finding.pair.name, alone.signature, alone.error) == (name, "values", "")
        assert not alone.has_pattern


@pytest.mark.parametrize(
    ("factor", "words", "error"),
    [
        (1024.0, "2^10 times the reference, which is the loss scale", "loss scale"),
        (1 / 1024, "2^-10 times the reference, which is 1 over the loss scale", "loss scale"),
        (512.0, "512 times the reference", "factor"),
    ],
)
@pytest.mark.parametrize("noisy", [False, True])
def test_a_factor_that_is_the_loss_scale_is_named(
    look: Callable[..., Diagnosis], factor: float, words: str, error: str, noisy: bool
) -> None:
    """Exactly or up to rounding, of one tensor and of all; any other factor is none."""
    ours = {name: near(t * factor, 9) if noisy else t * factor for name, t in STATE.items()}
    for names in (("up",), tuple(STATE)):
        sides = ({name: side[name] for name in names} for side in (ours, STATE))
        scaled = look("grad", *sides, scale=1024.0)
        said = scaled.signature.replace(" up to 2e-07", "")
        assert said.startswith(words)
        assert scaled.error == error


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_a_loss_scale_that_scales_nothing_is_no_cause(
    look: Callable[..., Diagnosis], scale: float
) -> None:
    """It is 1 where there is none, and after many steps that overflow it is 0."""
    ours = {name: tensor * 1.02 for name, tensor in STATE.items()}
    assert look("grad", ours, STATE, scale=scale).error == "factor"


def test_a_state_that_was_not_updated_is_no_factor(look: Callable[..., Diagnosis]) -> None:
    """A counter that stands still is half of the reference, and that is not what is wrong."""
    counters = [{name: torch.tensor([n, n]) for name in STATE} for n in (1.0, 2.0)]
    stands = look("step", counters[0], counters[1], start=counters[0])
    assert stands.signature == "not updated in each of 3 tensors that differ"
    weights = {name: tensor * 2 for name, tensor in STATE.items()}
    doubled = look("master", {n: 3 * t for n, t in STATE.items()}, weights, start=STATE)
    assert doubled.signature.startswith("moved by 2 times the reference's update in each of 3")
    scaled = look("buffer", {n: 1.5 * t for n, t in STATE.items()}, STATE)
    assert scaled.signature == "1.5 times the reference in each of 3 tensors that differ"


def test_gradients_that_were_not_zeroed_are_told_together(write_trace: Write) -> None:
    """Small ones alone have too few elements to tell."""
    seeds = {"up": 1, "down": 3}
    states = [{name: noise(seed + n, 4) for name, seed in seeds.items()} for n in (0, 1)]
    summed = {name: states[0][name] + states[1][name] for name in seeds}
    ours, theirs = (
        write_trace(
            [
                (moment, [whole("grad", *item) for item in state.items()])
                for moment, state in zip(STEPS, (states[0], last), strict=True)
            ]
        )
        for last in (summed, states[1])
    )
    together = diagnose(judge(ours, theirs, Criteria.of(None)))
    assert together.error == "not zeroed"
    assert together.signature == (
        "the difference is the gradient of step 1 in each of 2 tensors that differ"
    )


def parts(scales: Mapping[tuple[int, str], float], noisy: float) -> list[Any]:
    """Two ranks' gradients, of which each tensor of each rank has a factor of its own."""
    ranks: list[list[Observation]] = [[], []]
    for (rank, name), factor in scales.items():
        tensor = noise(10 * rank + len(name)) * factor
        ranks[rank].append(whole("grad", name, near(tensor, 9, noisy), local=True))
    return [[(STEPS[0], observations)] for observations in ranks]


MICROBATCH = ["microbatch 0: w", "microbatch 1: w"]


@pytest.mark.parametrize(
    ("factors", "words", "which"),
    [
        (
            {(0, "w"): 2.0, (1, "w"): 3.0},
            "2 times the reference on rank 0, 3 times the reference on rank 1 in",
            "each of 2",
        ),
        (
            {(0, "w"): 1.0, (1, "w"): 0.5},
            "1 times the reference on rank 0, 0.5 times the reference on rank 1 in",
            "each of 2",
        ),
        (
            {(rank, name): 2.0 + rank for rank in (0, 1) for name in MICROBATCH},
            "2 times the reference in microbatch 0 on rank 0, "
            "3 times the reference in microbatch 0 on rank 1 in",
            "2 of 4",
        ),
    ],
    ids=["each", "one", "microbatches"],
)
def test_a_factor_of_each_rank_is_told_by_rank(
    write_trace: Write, factors: Mapping[tuple[int, str], float], words: str, which: str
) -> None:
    """In its first microbatch; a rank that only rounds otherwise has factor 1."""
    ours, theirs = parts(factors, 2e-7), parts(dict.fromkeys(factors, 1.0), 0.0)
    by_rank = diagnose(judge(write_trace(*ours), write_trace(*theirs), Criteria.of(None)))
    assert by_rank.error == "per rank"
    assert by_rank.signature.startswith(words)
    assert by_rank.signature.endswith(f"in {which} tensors that differ")


def test_ranks_of_which_one_has_no_factor_are_not_told_by_rank(write_trace: Write) -> None:
    """And neither are those whose factors are all 1, which are rounding."""
    factors = {(0, "w"): 2.0, (1, "w"): 3.0}
    theirs = write_trace(*parts(dict.fromkeys(factors, 1.0), 0.0))
    ours = parts(factors, 2e-7)
    ours[1] = [(STEPS[0], [whole("grad", "w", noise(99), local=True)])]
    alone = diagnose(judge(write_trace(*ours), theirs, Criteria.of(None)))
    assert (alone.error, alone.likewise) == ("factor", ())
    rounded = write_trace(*parts(dict.fromkeys(factors, 1.0), 2e-7))
    assert diagnose(judge(rounded, theirs, Criteria.of(None))).signature == "values"


def test_a_gradient_that_is_infinite_has_no_factor_with_others(
    look: Callable[..., Diagnosis],
) -> None:
    """The others are told by themselves; what is not finite is no pattern to stand for them."""
    ours = {name: tensor * 2 for name, tensor in STATE.items()}
    ours["up"] = torch.full((64,), torch.nan)
    alone = look("grad", ours, STATE)
    assert (alone.finding.pair.name, alone.likewise) == ("mid", ("down",))
    assert alone.signature == "2 times the reference in 2 of 3 tensors that differ"


def test_integers_are_told_alone(look: Callable[..., Diagnosis]) -> None:
    """A counter has an exact factor, and no rounding that all would share."""
    theirs = {"a": torch.tensor([4, 8]), "b": torch.tensor([2, 6])}
    ours = {name: tensor * 2 for name, tensor in theirs.items()}
    assert look("buffer", ours, theirs).signature == (
        "2 times the reference in each of 2 tensors that differ"
    )


def test_one_number_of_a_weight_has_no_factor(look: Callable[..., Diagnosis]) -> None:
    """Two numbers always have a ratio; a loss, a norm and a setting are nothing but a number."""
    ours, theirs = {"w": torch.tensor([2.0])}, {"w": torch.tensor([1.0])}
    for kind in ("grad_norm", "loss", "buffer"):
        assert look(kind, ours, theirs).signature == "2 times the reference"
    for kind in ("grad", "exp_avg", "lr"):
        assert look(kind, ours, theirs).signature == NO_SIGNATURE.words


def test_settings_and_choices_are_told_alone(look: Callable[..., Diagnosis]) -> None:
    """Each rate says more than what all of them have in common."""
    theirs = {"a": torch.tensor([0.5, 0.25]), "b": torch.tensor([0.1, 0.2])}
    ours = {name: tensor * 2 for name, tensor in theirs.items()}
    alone = look("lr", ours, theirs)
    assert (alone.looked_at, alone.likewise, alone.signature) == (1, (), "2 times the reference")


def test_a_very_large_kind_is_told_by_its_first_tensors(
    look: Callable[..., Diagnosis], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of billions of weights is not read as a whole to say what is wrong."""
    monkeypatch.setattr(diagnosis, "MOST", 2 * 64)
    ours = {name: tensor * 2 for name, tensor in STATE.items()}
    assert look("grad", ours, STATE).signature == (
        "2 times the reference in each of 2 tensors that differ"
    )


def test_only_values_have_a_pattern(look: Callable[..., Diagnosis], write_trace: Write) -> None:
    """Another problem is its own error, and digests that differ have none."""
    other = look("grad", {"w": noise(1).double()}, {"w": noise(1)})
    assert (other.signature, other.error, other.has_pattern) == ("dtype", "dtype", False)
    sides = (
        write_trace([(STEPS[0], [whole("grad", "w", noise(n))])], digests=True) for n in (1, 2)
    )
    digests = diagnose(judge(*sides, Criteria.of(None)))
    assert (digests.signature, digests.error, digests.has_pattern) == ("values", "", False)


def test_a_whole_that_is_not_finite_is_an_error_and_no_pattern(
    look: Callable[..., Diagnosis],
) -> None:
    """The counts of NaN and infinities say more on the first line."""
    wrong = look("grad", {"w": noise(1).where(noise(1) > 0, torch.inf)}, {"w": noise(1)})
    assert (wrong.signature, wrong.error, wrong.has_pattern) == ("not finite", "not finite", False)
