"""Shards of which digests alone were recorded are held to each other and to whole tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_precision import Chunk, Observation, Span, whole
from pytest_precision.parity.compare.bounds import Bitwise
from pytest_precision.parity.compare.divergences import finding_of
from pytest_precision.parity.compare.logical_tensor import assemble, differing_rank
from pytest_precision.parity.compare.pairs import Pair
from pytest_precision.trace.lin8 import LIN8
from pytest_precision.trace.moment import INIT
from pytest_precision.trace.reader import Trace

Write = Callable[..., Trace]

TENSOR = torch.arange(24 * 16.0).reshape(24, 16)


def box(tensor: torch.Tensor, row: int, column: int = 0) -> Observation:
    return Observation(
        "param", "w", tensor, tuple(TENSOR.shape), Chunk((row, column), tuple(tensor.shape))
    )


def rows(tensor: torch.Tensor, *cuts: int) -> list[list[Observation]]:
    ends = [0, *cuts, len(tensor)]
    return [[box(tensor[a:b], a)] for a, b in itertools.pairwise(ends)]


@pytest.fixture
def joined(write_trace: Write) -> Callable[..., Any]:
    """Join what each rank recorded by digest."""

    def join(*ranks: list[Observation], name: str = LIN8) -> Any:
        recorded = ([(INIT, seen)] for seen in ranks)
        trace = write_trace(*recorded, digests=True, digest_name=name)
        assert any(entry.digest for entry in trace.entries(INIT))
        return assemble(trace, [*trace.entries(INIT)])

    return join


CUTS: dict[str, list[list[Observation]]] = {
    "by rows": rows(TENSOR, 12),
    "unevenly, one rank with nothing": rows(TENSOR, 3, 3, 20),
    "by columns": [[box(TENSOR[:, :5], 0)], [box(TENSOR[:, 5:], 0, 5)]],
    "in both": [[box(TENSOR[a : a + 12, b : b + 8], a, b)] for a in (0, 12) for b in (0, 8)],
    "on two replicas": [*rows(TENSOR, 12), *rows(TENSOR, 12)],
    "flat": [
        [Observation("param", "w", TENSOR.view(-1)[a:b], (24, 16), Span(a, b))]
        for a, b in ((0, 101), (101, 384))
    ],
    "so that one shard is kept as it is": rows(TENSOR, 23),
}


@pytest.mark.parametrize("cut", CUTS)
def test_shards_are_the_whole(joined: Callable[..., Any], cut: str) -> None:
    """However a tensor is cut, it is held to one rank's whole one, and one bit is enough."""
    shards, one = joined(*CUTS[cut]), joined([whole("param", "w", TENSOR)])
    other = TENSOR.clone()
    other.view(torch.int32)[13, 7] ^= 1
    assert shards.fault is None
    assert shards.same_bytes(one)
    assert not shards.same_bytes(joined([whole("param", "w", other)]))


def test_the_rank_of_the_shard_is_named(joined: Callable[..., Any]) -> None:
    """Where both sides are cut alike, digests say which shard it is."""
    other = TENSOR.clone()
    other[20, 1] += 1
    ours, theirs = joined(*rows(other, 12)), joined(*rows(TENSOR, 12))
    assert not ours.same_bytes(theirs)
    assert differing_rank(ours, theirs) == 1
    assert differing_rank(ours, joined([whole("param", "w", TENSOR)])) is None


BREAKS: dict[str, tuple[list[list[Observation]], str, str]] = {
    "hole": (rows(TENSOR, 12)[:1], "uncovered", "no rank holds 192 of 384 elements"),
    # As many elements as the tensor has, and each sum of digests is a sum.
    "hole and overlap": (
        [[box(TENSOR[:12], 0)], [box(TENSOR[6:18], 6)]],
        "pieces",
        "rank 0 and rank 1 hold parts that overlap, of which digests cannot say more",
    ),
    "replica": (
        [*rows(TENSOR, 12), *rows(TENSOR + 1, 12)],
        "replicas",
        "rank 2 and rank 0 hold different bits",
    ),
    "beyond": ([[box(TENSOR[:12], 13)]], "pieces", "rank 0 says that [12, 16] lies at "),
}


@pytest.mark.parametrize("name", BREAKS)
def test_shards_that_are_no_whole_are_named(joined: Callable[..., Any], name: str) -> None:
    """What is wrong and on which rank: no sum of digests would say so."""
    ranks, problem, text = BREAKS[name]
    ours, theirs = joined(*ranks), joined([whole("param", "w", TENSOR)])
    assert (ours.fault.problem, ours.fault.text[: len(text)]) == (problem, text)
    finding = finding_of(Pair(INIT, "param", "w", None, ours, theirs), Bitwise())
    assert finding is not None
    assert (finding.problem, finding.faulty_side) == (problem, "candidate")


def test_zeros_are_where_no_rank_has_a_part(joined: Callable[..., Any]) -> None:
    """A rank's own gradient may be a part of it, and all of it on the other side."""
    half = TENSOR.clone()
    half[12:] = 0
    mine = joined([Observation("grad", "w", half[:12], (24, 16), Chunk((0, 0), (12, 16)), True)])
    assert mine.same_bytes(joined([whole("grad", "w", half, local=True)]))
    assert not mine.same_bytes(joined([whole("grad", "w", TENSOR, local=True)]))


def test_values_are_held_to_digests(joined: Callable[..., Any], write_trace: Write) -> None:
    """A small run keeps values; the digest of the other side is computed of them."""
    trace = write_trace(*([(INIT, seen)] for seen in rows(TENSOR, 12)))
    values = assemble(trace, [*trace.entries(INIT)])
    for name in (LIN8, "xxh3-128"):
        digest = joined([whole("param", "w", TENSOR)], name=name)
        assert values.same_bytes(digest)
        assert not values.same_bytes(joined([whole("param", "w", TENSOR + 1)], name=name))
