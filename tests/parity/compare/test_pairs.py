"""Pieces that ranks hold become whole logical tensors, or a fault that names what is wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_precision import Chunk, Observation, RecordingError, Span, whole
from pytest_precision.parity.compare.logical_tensor import assemble
from pytest_precision.parity.compare.pairs import align, common_moments
from pytest_precision.trace.digests import digest
from pytest_precision.trace.moment import INIT, Moment
from pytest_precision.trace.reader import Trace

Write = Callable[..., Trace]


def box(tensor: torch.Tensor, offset: tuple[int, ...], shape: tuple[int, ...]) -> Observation:
    return Observation("param", "w", tensor, shape, Chunk(offset, tuple(tensor.shape)))


def held(trace: Trace) -> Any:
    return assemble(trace, list(trace.entries(INIT)))


@given(data=st.data())
def test_any_sharding_is_put_together(write_trace: Write, data: st.DataObject) -> None:
    """Random row shards, uneven and empty ones included, in any order of ranks."""
    rows, columns = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 5))
    cuts = sorted(data.draw(st.lists(st.integers(0, rows), max_size=4)))
    logical = torch.randint(-9, 9, (rows, columns), dtype=torch.int16).view(torch.bfloat16)
    edges = [0, *cuts, rows]
    shards = [(a, logical[a:b]) for a, b in itertools.pairwise(edges)]
    order = data.draw(st.permutations(shards))
    ranks = [[(INIT, [box(shard, (a, 0), (rows, columns))])] for a, shard in order]
    side = held(write_trace(*ranks))
    assert side.fault is None
    assert torch.equal(side.tensor.view(torch.int16), logical.view(torch.int16))


@given(data=st.data())
def test_any_lost_element_is_noticed(write_trace: Write, data: st.DataObject) -> None:
    """Flat ranges that leave out one element cover nothing."""
    size = data.draw(st.integers(2, 30))
    lost = data.draw(st.integers(0, size - 1))
    tensor = torch.arange(size).float()
    parts = [(0, lost), (lost + 1, size)]
    ranks = [
        [(INIT, [Observation("exp_avg", "w", tensor[a:b], (size,), Span(a, b))])] for a, b in parts
    ]
    side = held(write_trace(*ranks))
    assert side.fault.problem == "uncovered"
    assert side.fault.text == f"no rank holds 1 of {size} elements"


def test_boxes_and_spans_of_one_tensor_fit_together(write_trace: Write) -> None:
    """Two ways of sharding describe the same logical tensor."""
    tensor = torch.arange(12.0).reshape(4, 3)
    span = Observation("param", "w", tensor.view(-1)[6:], (4, 3), Span(6, 12))
    side = held(write_trace([(INIT, [box(tensor[:2], (0, 0), (4, 3))])], [(INIT, [span])]))
    assert side.fault is None
    assert torch.equal(side.tensor, tensor)


def test_float8_shards_are_moved_as_bits(write_trace: Write) -> None:
    """Dtypes that torch cannot index or fill are put together too."""
    tensor = torch.arange(128, dtype=torch.uint8).view(torch.float8_e5m2)
    ranks = [[(INIT, [box(tensor[a : a + 64], (a,), (128,))])] for a in (0, 64)]
    side = held(write_trace(*ranks))
    assert side.tensor.dtype == torch.float8_e5m2
    assert torch.equal(side.tensor.view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize("place", ["whole", "overlap"])
def test_replicas_must_agree_bit_for_bit(write_trace: Write, place: str) -> None:
    """A -0 on one rank where another has +0 is a fault that names the rank."""
    one, other = torch.tensor([1.0, 0.0, 2.0]), torch.tensor([1.0, -0.0, 2.0])
    first = box(one, (0,), (3,)) if place == "whole" else box(one[:2], (0,), (3,))
    second = box(other, (0,), (3,)) if place == "whole" else box(other[1:], (1,), (3,))
    side = held(write_trace([(INIT, [first])], [(INIT, [second])]))
    assert (side.fault.problem, side.fault.rank) == ("replicas", 1)
    assert side.fault.difference.statistics.mismatched == 1


def test_ranks_must_agree_about_dtype_and_shape(write_trace: Write) -> None:
    """Pieces of different dtypes are no pieces of one tensor."""
    ranks = [[(INIT, [whole("param", "w", torch.ones(2, dtype=d))])] for d in (torch.half, None)]
    side = held(write_trace(*ranks))
    assert side.fault.problem == "pieces"
    assert side.fault.text == "rank 1 has float32[2], rank 0 float16[2]"


def test_a_piece_beyond_the_tensor_is_a_fault(write_trace: Write) -> None:
    """An offset that is off by one is found by the shape of what it would cover."""
    ranks = [[(INIT, [box(torch.ones(2), (a,), (4,))])] for a in (0, 3)]
    side = held(write_trace(*ranks))
    assert (side.fault.problem, side.fault.rank) == ("pieces", 1)


def test_rank_local_tensors_are_kept_apart(write_trace: Write) -> None:
    """Partial sums of gradients differ between ranks by nature, and are compared rank by rank."""
    ranks = [
        [(INIT, [whole("grad", "w", torch.full((2,), float(rank)), local=True)])]
        for rank in range(2)
    ]
    trace = write_trace(*ranks)
    pairs = list(align(trace, trace, (INIT, INIT)))
    assert [(pair.rank, pair.candidate.tensor[0].item()) for pair in pairs] == [(0, 0.0), (1, 1.0)]


def test_each_part_of_a_ranks_own_tensor_counts(write_trace: Write) -> None:
    """Else the second part of a rank's own gradient could differ, and nobody would see it."""

    def side(*values: float) -> Any:
        parts = torch.tensor(values).repeat_interleave(192 // len(values)).split(192 // len(values))
        seen = []
        for n, part in enumerate(parts):
            place = Span(n * len(part), (n + 1) * len(part))
            text = digest(part)
            seen.append(Observation("grad", "w", part.to("meta"), (192,), place, True, text))
        return held(write_trace([(INIT, seen)]))

    assert side(1.0, 2.0).same_bytes(side(1.0, 2.0))
    assert not side(1.0, 2.0).same_bytes(side(1.0, 3.0))
    with pytest.raises(ValueError, match="digests that can be added but got xxh3-128 of pieces"):
        side(1.0, 2.0).same_bytes(side(1.0, 1.0, 2.0))


def test_a_part_that_is_next_to_nothing_asks_for_no_memory(write_trace: Write) -> None:
    """A stranger's recording may say that its two elements are some of any number."""
    place = Chunk((0,), (2,))
    own = Observation("grad", "w", torch.ones(2), (2**50,), place, local=True)
    (pair,) = align(*[write_trace([(INIT, [own])])] * 2, (INIT, INIT))
    assert pair.candidate is not None
    assert pair.candidate.fault is not None
    assert pair.candidate.fault.problem == "uncovered"


def test_the_rank_of_an_element_is_known(write_trace: Write) -> None:
    """A divergence names the rank that holds the element, or nobody where all do."""
    tensor = torch.ones(4, 2)
    shards = write_trace(*([(INIT, [box(tensor[a : a + 2], (a, 0), (4, 2))])] for a in (0, 2)))
    assert [held(shards).rank_of((row, 1)) for row in (1, 2)] == [0, 1]
    replicas = write_trace(*([(INIT, [whole("param", "w", tensor)])] for _ in range(2)))
    assert held(replicas).rank_of((0, 0)) is None


def test_pairs_come_in_causal_order(write_trace: Write) -> None:
    """Causes before effects, an optimizer's unknown state before the master it feeds."""
    kinds = ["param", "master", "compensation", "exp_avg", "loss", "used_param"]
    trace = write_trace([(INIT, [whole(kind, "w", torch.ones(1)) for kind in kinds])])
    assert [pair.kind for pair in align(trace, trace, (INIT, INIT))] == [
        "used_param",
        "loss",
        "exp_avg",
        "compensation",
        "master",
        "param",
    ]


def test_what_one_side_lacks_is_a_pair_of_its_own(write_trace: Write) -> None:
    """Both ways: a tensor too few and a tensor too many."""
    ours = write_trace([(INIT, [whole("param", "a", torch.ones(1))])])
    theirs = write_trace([(INIT, [whole("param", "b", torch.ones(1))])])
    pairs = list(align(ours, theirs, (INIT, INIT)))
    assert [(p.name, p.candidate is None, p.reference is None) for p in pairs] == [
        ("a", False, True),
        ("b", True, False),
    ]


def test_train_steps_find_each_other_across_sequences(write_trace: Write) -> None:
    """Train-eval-train is compared with train-only at the steps that both train."""
    train = [Moment(0, "train", 1, "optimizer_step"), Moment(1, "train", 2, "optimizer_step")]
    late = Moment(2, "train", 2, "optimizer_step")
    ours = write_trace([(m, []) for m in (INIT, train[0], Moment(1, "eval", 1, "evaluate"), late)])
    theirs = write_trace([(m, []) for m in (INIT, *train)])
    assert common_moments(ours, theirs) == [(INIT, INIT), (train[0], train[0]), (late, train[1])]


def test_sides_that_train_differently_long_are_refused(write_trace: Write) -> None:
    """Steps that only one side trains would be left out silently."""
    one, two = (Moment(n - 1, "train", n, "optimizer_step") for n in (1, 2))
    with pytest.raises(RecordingError, match=r"candidate trains 1 and the reference 2"):
        common_moments(write_trace([(one, [])]), write_trace([(one, []), (two, [])]))


def test_ends_find_each_other_where_both_have_one(write_trace: Write) -> None:
    """A side whose last operation is an evaluation has shown there what an end would show."""
    train, end = Moment(0, "train", 1, "optimizer_step"), Moment(0, "train", 1, "end")
    late = [moment._replace(op=1) for moment in (train, end)]
    evaluated = Moment(1, "eval", 1, "evaluate")
    theirs = write_trace([(moment, []) for moment in (train, end)])
    assert common_moments(write_trace([(m, []) for m in late]), theirs) == [
        (late[0], train),
        (late[1], end),
    ]
    ours = write_trace([(moment, []) for moment in (train, evaluated)])
    assert common_moments(ours, theirs) == [(train, train)]
