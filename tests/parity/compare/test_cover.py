"""Places alone say whether shards are all of a tensor: sums of digests do not."""

from __future__ import annotations

from math import prod

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_precision.engine.observation import Chunk, Place, Span
from pytest_precision.parity.compare.cover import elements_at, overlapping, plain_place


@st.composite
def places(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Place]]:
    """Draw a shape, and some chunks and spans of it."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    cut = st.tuples(*(st.tuples(st.integers(0, n), st.integers(0, n)) for n in shape))
    ends = st.tuples(st.integers(0, prod(shape)), st.integers(0, prod(shape)))
    chunk = cut.map(
        lambda bounds: Chunk(
            tuple(min(pair) for pair in bounds), tuple(abs(a - b) for a, b in bounds)
        )
    )
    span = ends.map(lambda pair: Span(min(pair), max(pair)))
    drawn = draw(st.lists(st.one_of(chunk, span), max_size=4))
    plain = dict.fromkeys(plain_place(shape, place) for place in drawn if elements_at(place))
    return shape, [*plain]


def mask(shape: tuple[int, ...], place: Place) -> torch.Tensor:
    """Return which elements lie at a place, by torch's own indices."""
    covered = torch.zeros(shape, dtype=torch.int64)
    if isinstance(place, Span):
        covered.view(-1)[place.start : place.stop] = 1
    else:
        bounds = zip(place.offsets, place.sizes, strict=True)
        covered[tuple(slice(start, start + size) for start, size in bounds)] = 1
    return covered


@settings(deadline=None, max_examples=300)
@given(places())
def test_an_overlap_is_two_that_share_an_element(
    drawn: tuple[tuple[int, ...], list[Place]],
) -> None:
    """Of chunks and spans in any number of dimensions, two are named that share one, if any do."""
    shape, parts = drawn
    shared = overlapping(shape, tuple(parts))
    counts = sum((mask(shape, place) for place in parts), torch.zeros(shape, dtype=torch.int64))
    assert (shared is None) == (int(counts.max()) < 2)
    if shared is not None:
        assert bool((mask(shape, shared[0]) * mask(shape, shared[1])).any())


@settings(deadline=None, max_examples=100)
@given(places())
def test_a_plain_place_has_the_same_elements(drawn: tuple[tuple[int, ...], list[Place]]) -> None:
    """So that two ways to tell of one shard are one place."""
    shape, parts = drawn
    for place in parts:
        assert torch.equal(mask(shape, plain_place(shape, place)), mask(shape, place))
        whole_rows = Chunk((0,) * len(shape), (1, *shape[1:]))
        assert plain_place(shape, whole_rows) == Span(0, prod(shape[1:]))
