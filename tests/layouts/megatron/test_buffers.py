"""Buffers hold every parameter once, aligned, in buckets that all ranks share equally."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pytest_precision import Span
from pytest_precision.layouts.megatron.buffers import BUCKET_MULTIPLE, PARAMETER_MULTIPLE, Buffer
from pytest_precision.layouts.megatron.packing import Part, split_flat

sizes = st.lists(st.integers(1, 700), min_size=1, max_size=8)


def buffer_of(numels: list[int], world_size: int, bucket_size: int, rank: int = 0) -> Buffer:
    return Buffer(
        [(str(n), nn.Parameter(torch.zeros(numel))) for n, numel in enumerate(numels)],
        rank=rank,
        world_size=world_size,
        bucket_size=bucket_size,
        dtype=torch.bfloat16,
        grad_dtype=torch.float32,
        shared=False,
    )


@given(sizes, st.integers(1, 5), st.integers(1, 1500))
def test_parameters_are_aligned_and_apart(
    numels: list[int], world_size: int, bucket_size: int
) -> None:
    """In reverse order, none over another, each at an offset that GEMMs can read."""
    slots = [*buffer_of(numels, world_size, bucket_size).slots]
    assert [slot.name for slot in slots] == [str(n) for n in range(len(numels))][::-1]
    assert all(slot.span.start % PARAMETER_MULTIPLE == 0 for slot in slots)
    assert all(a.span.stop <= b.span.start for a, b in pairwise(slots))


@given(sizes, st.integers(1, 5), st.integers(1, 1500))
def test_buckets_follow_each_other(numels: list[int], world_size: int, bucket_size: int) -> None:
    """Each is divisible by the number of ranks, and all are taken by what lies in them."""
    buckets = buffer_of(numels, world_size, bucket_size).buckets
    starts = [bucket.span.start for bucket in buckets]
    assert starts == [0, *(bucket.span.stop for bucket in buckets[:-1])]
    for bucket in buckets:
        size = bucket.span.stop - bucket.span.start
        assert size % math.lcm(BUCKET_MULTIPLE, world_size) == 0
        assert bucket.slots[-1].span.stop <= bucket.span.stop


@given(sizes, st.integers(1, 5), st.integers(1, 1500))
def test_every_element_has_one_owner(numels: list[int], world_size: int, bucket_size: int) -> None:
    """Whatever the ranks' parts cut through."""
    owners = {str(n): torch.zeros(numel, dtype=torch.int) for n, numel in enumerate(numels)}
    for rank in range(world_size):
        buffer = buffer_of(numels, world_size, bucket_size, rank)
        for bucket in buffer.buckets:
            for slot in bucket.slots:
                owned = buffer.owned(bucket, slot)
                if owned is not None:
                    owners[slot.name][owned.start : owned.stop] += 1
    assert all(bool((count == 1).all()) for count in owners.values())


@given(st.integers(0, 12), st.integers(0, 12))
def test_a_shard_is_cut_where_its_parts_meet(one: int, other: int) -> None:
    """Each piece has its place in the logical tensor; parts out of reach are left out."""
    parts = (
        Part("a", (2, 2), Span(0, 4)),
        Part("b", (3,), Span(4, 7)),
        Part("c", (5,), Span(7, 12)),
    )
    start, stop = sorted((one, other))
    whole = torch.arange(12)
    seen = [*split_flat(parts, whole[start:stop], Span(start, stop))]
    assert sum(len(piece) for _, _, piece in seen) == stop - start
    for part, span, piece in seen:
        assert piece.tolist() == [part.span.start + n for n in range(span.start, span.stop)]
