"""A tolerance that most elements of a kind cannot break is named, and one that they can is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_precision import Observation, Span, close, norm, ulp, whole
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.criterion import Elementwise
from pytest_precision.parity.compare.tensors import compare
from pytest_precision.parity.self_checks.tolerance import allowed, proves_nothing
from pytest_precision.trace.moment import INIT, Moment
from pytest_precision.trace.reader import Trace

Write = Callable[..., Trace]
STEPS = [Moment(n - 1, "train", n, "optimizer_step") for n in (1, 2, 3)]

SMALL = [3e-6, -2e-6, 1e-6, 0.0]


def run(*steps: Sequence[Observation]) -> list[tuple[Moment, Sequence[Observation]]]:
    return list(zip([INIT, *STEPS], steps, strict=False))


def state(kind: str, *values: Any, dtype: torch.dtype = torch.float32) -> list[Any]:
    """One tensor `w`, step by step from the start on."""
    return [[whole(kind, "w", torch.tensor(value, dtype=dtype))] for value in values]


def empty(trace: Trace, criterion: Any, *kinds: str) -> list[str]:
    found = proves_nothing(trace, trace, Criteria.of(criterion), set(kinds))
    return [one.words for one in found]


def test_a_tolerance_above_the_tensor_is_named(write_trace: Write) -> None:
    """Elements that are zero throughout have no size, and do not count."""
    trace = write_trace(run(*state("exp_avg_sq", SMALL, SMALL)))
    words = "allows exp_avg_sq of 100 % of w to be anything: its largest element is 3e-06"
    loose = close(rtol=1e-4, atol=1e-5)
    assert empty(trace, loose, "exp_avg_sq") == [f"close(rtol=0.0001, atol=1e-05) {words}"]
    assert empty(trace, close(rtol=1e-4, atol=1e-7), "exp_avg_sq") == []


def test_a_tolerance_above_the_way_of_a_weight_is_named(write_trace: Write) -> None:
    """Both sides start alike, so a candidate that never moves agrees with it."""
    trace = write_trace(run(*state("param", [1.0, 2.0], [1.0, 2.01], [1.0, 2.02])))
    words = "allows param of 100 % of w to stay as it was: no element of it moves by more than 0.02"
    assert empty(trace, close(rtol=0.02, atol=0), "param") == [f"close(rtol=0.02, atol=0) {words}"]
    assert empty(trace, close(rtol=0.005, atol=0), "param") == []
    assert empty(trace, ulp(2**17), "param")
    assert empty(trace, ulp(2**64), "param")
    assert not empty(trace, ulp(2**15), "param")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("lr", [[1e-2], [0.0]]),
        ("loss", [[2.30], [2.29], [2.28]]),
        ("grad_norm", [0.5, 0.25]),
        ("step", [1.0, 2.0]),
        ("grad", [[0.0, 0.0], [0.0, 0.0]]),
        ("param", [[1.0, 2.0], [1.0, 2.0]]),
        ("exp_avg", [[0.0, 0.0, 0.1], [0.0, 0.0, 0.2]]),
        ("buffer", [[float("nan"), 1.0], [float("inf"), 1.0]]),
    ],
    ids=[
        "lr falls to zero",
        "loss hardly falls",
        "norm",
        "counter",
        "idle expert",
        "frozen",
        "one row",
        "nan",
    ],
)
def test_what_is_small_at_times_is_no_reason(write_trace: Write, kind: str, values: Any) -> None:
    """What counts is the largest that an element ever was, and elements that ever were anything."""
    trace = write_trace(run(*state(kind, *values)))
    assert empty(trace, close(rtol=1e-2, atol=1e-3), kind) == []


def test_integers_and_bytes_have_no_size(write_trace: Write) -> None:
    """A generator's state and the codes of a quantized weight are no magnitudes."""
    trace = write_trace(run(*state("rng", [1, 2, 3], dtype=torch.uint8)))
    assert empty(trace, close(rtol=9.0, atol=9.0), "rng") == []


def test_most_elements_of_the_kind_decide(write_trace: Write) -> None:
    """A bias that barely moves beside a weight that does is no reason, the other way round is."""
    large, small = torch.ones(5), torch.full((4,), 1e-9)
    moved = [whole("exp_avg", "w", large), whole("exp_avg", "b", small)]
    assert empty(write_trace(run(moved)), close(rtol=0, atol=1e-6), "exp_avg") == []
    still = [whole("exp_avg", "w", large[:3]), whole("exp_avg", "b", small)]
    (words,) = empty(write_trace(run(still)), close(rtol=0, atol=1e-6), "exp_avg")
    assert "exp_avg of 100 % of b " in words


def test_each_kind_is_held_to_its_own_criterion(write_trace: Write) -> None:
    """All that prove nothing are named in causal order; what is bitwise proves something."""
    kinds = ("master", "exp_avg", "grad", "lr")
    trace = write_trace(run([whole(kind, "w", torch.tensor(SMALL)) for kind in kinds], []))
    loose = close(rtol=0, atol=1e-5)
    criteria = {"default": loose, "exp_avg": close(rtol=1e-4, atol=0)}
    found = [words.split()[3] for words in empty(trace, criteria, *kinds)]
    assert found == ["grad", "lr"]
    assert empty(trace, {"grad": loose}, "lr") == []


def test_a_named_tensor_is_held_to_its_own_tolerance(write_trace: Write) -> None:
    """One that allows all of the tensors that it names anything is no matter of the others."""
    small, large = torch.full((2,), 1e-9), torch.ones(9)
    trace = write_trace(run([whole("exp_avg", "b", small), whole("exp_avg", "w", large)]))
    tight, loose = close(rtol=1e-3, atol=0), close(rtol=0, atol=1e-6)
    assert empty(trace, {"exp_avg": loose}, "exp_avg") == []
    (words,) = empty(trace, {"exp_avg": tight, "exp_avg:b": loose}, "exp_avg")
    assert "close(rtol=0, atol=1e-06) allows exp_avg of 100 % of b " in words


def test_shards_add_up_and_replicas_count_once(write_trace: Write) -> None:
    """Whatever part of a tensor a rank holds, wherever it lies."""

    def shard(values: list[float], start: int) -> list[tuple[Moment, Sequence[Observation]]]:
        tensor = torch.tensor(values)
        place = Span(start, start + len(values))
        both = whole("exp_avg", "b", torch.full((3,), 1e-9))
        return run([Observation("exp_avg", "w", tensor, (4,), place), both])

    trace = write_trace(shard([1.0, 1.0], 0), shard([1.0, 1.0], 2))
    assert empty(trace, close(rtol=0, atol=1e-6), "exp_avg") == []
    (words,) = empty(trace, close(rtol=2.0, atol=0), "exp_avg")
    assert "exp_avg of 100 % of w " in words
    assert "largest element is 1" in words


def test_sides_stored_otherwise_are_held_in_the_wider_dtype(write_trace: Write) -> None:
    """200 steps of bf16 are anything; of fp32, which the candidate is in, next to nothing."""
    narrow = write_trace(run(*state("exp_avg", [1.0, 0.7], dtype=torch.bfloat16)))
    wide = write_trace(run(*state("exp_avg", [1.0, 0.7])))
    criteria = Criteria.of(ulp(300, check_dtype=False))
    assert proves_nothing(narrow, narrow, criteria, {"exp_avg"})
    assert not proves_nothing(wide, narrow, criteria, {"exp_avg"})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("criterion", [ulp(1), ulp(3), close(rtol=0.25, atol=0.5)], ids=str)
def test_bounds_are_what_the_comparison_allows(criterion: Elementwise, dtype: torch.dtype) -> None:
    """A reference moved up by half its bound agrees, by four bounds it does not."""
    reference = torch.tensor([0.0, 0.75, 1.0, 3.5, 20.0], dtype=dtype).double()
    bound = allowed(criterion, reference, dtype)

    def agrees(candidate: Tensor) -> bool:
        return compare(candidate.to(dtype), reference.to(dtype), criterion) is None

    assert agrees(reference + bound / 2)
    for position in range(len(reference)):
        beyond = reference.clone()
        beyond[position] += 4 * bound[position]
        assert not agrees(beyond)


def test_a_norm_above_the_way_of_a_weight_is_named(write_trace: Write) -> None:
    """A candidate that never moves has that relative L2 error, whatever single elements do."""
    trace = write_trace(run(*state("param", [3.0, 4.0], [3.0, 4.05])))
    words = "allows param of 100 % of w to stay as it was: no element of it moves by more than 0.05"
    assert empty(trace, norm(rel=0.02), "param") == [f"norm(rel=0.02) {words}"]
    assert empty(trace, norm(rel=0.005), "param") == []
    assert empty(trace, norm(rel=0.9), "loss") == []
