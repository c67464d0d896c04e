"""Work out the digests of weights of which one part is wrong: a shard, an expert, a fused weight.

Digests of parts add up to that of the whole, so that each part is read once for all mistakes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from torch import Tensor

from pytest_precision.engine.observation import Chunk, Place, Span
from pytest_precision.matrix.contract import dtype_name
from pytest_precision.rollout.expected_weights import ExpectedWeight
from pytest_precision.rollout.inference_weights import described_digest, module_name
from pytest_precision.rollout.weight_causes import numbered, stale_words, transposed_words
from pytest_precision.trace.lin8 import added_digest, partial_digests
from pytest_precision.trace.lin8_sums import DigestedPart

SHARDS = (8, 4, 2)
"""Numbers of ranks over which an engine may have cut a weight, the most first."""


class Cut(NamedTuple):
    """A weight that is cut into parts.

    Attributes:
        places: of the parts.
        groups: of parts that may be wrong together, the first and the end, with words on where.
    """

    places: Sequence[Place]
    groups: Sequence[tuple[int, int, str]]


def wrong_pieces(target: ExpectedWeight) -> Iterator[tuple[str, str]]:
    """Yield what is wrong in words, and the digest of the weight that has one wrong part.

    Args:
        target: what the engine should hold, as a tensor.
    """
    expected, source = target.expected, target.source
    if source is None or not isinstance(expected, Tensor) or target.ending:
        return
    for step, former in sorted(source.former.items(), reverse=True):
        before = former if isinstance(former, str) else source.cast(former)
        if isinstance(before, str) or before.shape != expected.shape:
            continue
        for cut in (*_parts(target, expected), *_shards(expected)):
            for where, text in _replaced(expected, before, cut):
                yield stale_words(step, where), text
    if expected.ndim == 3 and expected.shape[1] == expected.shape[2]:
        rows = [(number, number + 1, f"row {number} of ") for number in range(len(expected))]
        cut = Cut(_chunks(expected, 0, len(expected)), rows)
        for where, text in _replaced(expected, expected.transpose(1, 2), cut):
            yield transposed_words(where), text


def _replaced(expected: Tensor, other: Tensor, cut: Cut) -> Iterator[tuple[str, str]]:
    """Yield where a tensor has a part of the other one, and its digest then."""
    ours, theirs = (
        partial_digests([_part(tensor, place) for place in cut.places])
        for tensor in (expected, other)
    )
    for first, end, where in cut.groups:
        if ours[first:end] != theirs[first:end]:
            digest = added_digest([*ours[:first], *theirs[first:end], *ours[end:]])
            yield where, described_digest(dtype_name(expected.dtype), expected.shape, digest)


def _part(tensor: Tensor, place: Place) -> DigestedPart:
    if isinstance(place, Span):
        part = tensor.reshape(-1)[place.start : place.stop]
    else:
        part = tensor
        for axis, (start, size) in enumerate(zip(place.offsets, place.sizes, strict=True)):
            part = part.narrow(axis, start, size)
    return DigestedPart(part, tuple(tensor.shape), place)


def _parts(target: ExpectedWeight, expected: Tensor) -> Iterator[Cut]:
    """Yield the cut into the weights that an engine has fused or stacked."""
    names, sizes = target.making.names, target.sizes
    if len(names) > 1 and sum(sizes) == expected.numel():
        ends = [0, *accumulate(sizes)]
        places = [Span(start, end) for start, end in pairwise(ends)]
        groups = [(n, n + 1, f"{module_name(name)} in ") for n, name in enumerate(names)]
        yield Cut(places, groups)


def _shards(expected: Tensor) -> Iterator[Cut]:
    """Yield the cuts of a matrix over ranks, by rows and by columns."""
    for axis, noun in ((0, "row"), (1, "column")) if expected.ndim == 2 else ():
        length = expected.shape[axis]
        most = next((number for number in SHARDS if length and length % number == 0), 0)
        groups = []
        for number in SHARDS:
            if number <= most:
                together, size = most // number, length // number
                for shard in range(number):
                    words = numbered(noun, shard * size, (shard + 1) * size)
                    groups.append((shard * together, (shard + 1) * together, f"{words} of "))
        if groups:
            yield Cut(_chunks(expected, axis, most), groups)


def _chunks(tensor: Tensor, axis: int, number: int) -> list[Place]:
    """Return the places of a number of equal parts along an axis."""
    sizes = [*tensor.shape]
    sizes[axis] //= number
    offsets = [0] * tensor.ndim
    places: list[Place] = []
    for part in range(number):
        offsets[axis] = part * sizes[axis]
        places.append(Chunk(tuple(offsets), tuple(sizes)))
    return places
