"""Kinds that are alike are found as columns, and only where no pair would say otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from pytest_precision import Observation, Span, whole
from pytest_precision.parity.compare.alike import AlikeKinds
from pytest_precision.trace.header import Header
from pytest_precision.trace.lin8 import LIN8
from pytest_precision.trace.moment import INIT
from pytest_precision.trace.reader import Trace
from pytest_precision.trace.writer import TraceWriter

SIZE = 64

Shown = Mapping[int, list[Observation]]


def shard(rank: int, start: int, stop: int, kind: str = "param") -> Observation:
    values = torch.arange(float(SIZE))[start:stop]
    return Observation(kind, "w", values, (SIZE,), Span(start, stop))


HALVES: Shown = {0: [shard(0, 0, 32)], 1: [shard(1, 32, 64)]}
WHOLE: Shown = {rank: [whole("param", "w", torch.arange(float(SIZE)))] for rank in range(2)}


def flipped(shown: Shown, rank: int) -> Shown:
    """Return what ranks show, with one bit of one rank's tensor flipped."""
    (seen,) = shown[rank]
    tensor = seen.tensor.clone()
    tensor.view(torch.int32)[3] ^= 1
    changed = Observation(seen.kind, seen.name, tensor, seen.shape, seen.place)
    return {**shown, rank: [changed]}


@pytest.fixture
def kinds(tmp_path: Path) -> Callable[..., set[str]]:
    """Return a function that says which kinds are alike of what two sides show."""

    def trace(name: str, shown: Shown, digests: bool) -> Trace:
        folder = tmp_path / name
        folder.mkdir()
        for rank, observations in shown.items():
            with TraceWriter(folder, rank, digests=digests, digest_name=LIN8) as writer:
                writer.add(INIT, observations)
                writer.finish(Header(len(shown), {}, {}))
        return Trace(folder, len(shown))

    def alike(candidate: Shown, reference: Shown, digests: bool) -> set[str]:
        sides = trace("candidate", candidate, digests), trace("reference", reference, digests)
        return {tensors.kind for tensors in AlikeKinds(*sides).at((INIT, INIT), frozenset())}

    return alike


@pytest.mark.parametrize("digests", [False, True])
@pytest.mark.parametrize("shown", [HALVES, WHOLE], ids=["shards", "replicas"])
def test_one_bit_of_any_rank_counts(
    kinds: Callable[..., set[str]], shown: Shown, digests: bool, tmp_path: Path
) -> None:
    """Also that of a replica that the reference has, too: both sides may be broken alike."""
    assert kinds(shown, shown, digests) == {"param"}
    for rank in shown:
        for number, sides in enumerate(
            [(flipped(shown, rank), shown), (shown, flipped(shown, rank))]
        ):
            for folder in tmp_path.iterdir():
                folder.rename(tmp_path / f".{folder.name}{rank}{number}")
            assert kinds(*sides, digests) == set()


@pytest.mark.parametrize(
    "shown",
    [
        {0: [shard(0, 0, 32)], 1: [shard(1, 33, 64)]},
        {0: [shard(0, 0, 40)], 1: [shard(1, 32, 64)]},
        {0: [shard(0, 0, 32)], 1: [whole("param", "w", torch.ones(32))]},
    ],
    ids=["hole", "overlap", "shapes"],
)
@pytest.mark.parametrize("digests", [False, True])
def test_what_forms_no_whole_is_left_to_pairs(
    kinds: Callable[..., set[str]], shown: Shown, digests: bool
) -> None:
    """Both sides have the same fault, which only the pieces' places tell."""
    assert kinds(shown, shown, digests) == set()


def test_replicas_of_both_sides_are_held_to_each_other(kinds: Callable[..., set[str]]) -> None:
    """A rank that deviates on both sides alike is no agreement."""
    broken = flipped(WHOLE, 1)
    assert kinds(broken, broken, True) == set()


def test_other_shards_and_other_tensors_are_left_to_pairs(
    kinds: Callable[..., set[str]], tmp_path: Path
) -> None:
    """Digests of other cuts are sums, and a tensor that one side lacks is a finding."""
    assert kinds(HALVES, WHOLE, True) == set()
    for folder in tmp_path.iterdir():
        folder.rename(tmp_path / f".{folder.name}")
    more = {rank: [*seen, whole("param", "v", torch.ones(3))] for rank, seen in WHOLE.items()}
    assert kinds(more, WHOLE, True) == set()
