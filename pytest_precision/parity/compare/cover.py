"""Find parts of a tensor that overlap, by their places alone.

Sums of digests do not tell: an element that two ranks hold and one that nobody holds are invisible
in the number of elements, too. Where no two parts overlap, that number says exactly how many are
missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

from pytest_precision.engine.observation import Chunk, Place, Span
from pytest_precision.trace.lin8_sums import merged_axes

Box = tuple[tuple[int, int], ...]
"""For each axis, where a block of a tensor starts and stops."""


def plain_place(shape: Sequence[int], place: Place) -> Place:
    """Return a place as a `Span` if its elements lie one after the other, however it was told."""
    if isinstance(place, Span):
        return place
    axes = merged_axes(shape, place.offsets, place.sizes)
    if len(axes) > 1:
        return place
    ((_, offset, length),) = axes
    return Span(offset, offset + length)


def elements_at(place: Place) -> int:
    """Return the number of elements at a place."""
    return math.prod(place.sizes) if isinstance(place, Chunk) else place.stop - place.start


def lies_within(shape: Sequence[int], place: Place) -> bool:
    """Return whether all elements of a place are in a tensor of this shape."""
    if isinstance(place, Span):
        return 0 <= place.start <= place.stop <= math.prod(shape)
    return len(place.offsets) == len(shape) and all(
        0 <= offset <= offset + size <= extent
        for offset, size, extent in zip(place.offsets, place.sizes, shape, strict=True)
    )


@lru_cache(maxsize=1 << 14)
def overlapping(shape: tuple[int, ...], places: tuple[Place, ...]) -> tuple[Place, Place] | None:
    """Return two places in a tensor that share an element; None if no two do.

    Args:
        shape: of the tensor.
        places: those that `plain_place` returns, each once, with at least one element.
    """
    spans = [place for place in places if isinstance(place, Span)]
    if len(spans) == len(places):
        ordered_places = sorted(spans, key=lambda span: span.start)
        pairs = pairwise(ordered_places)
        return next(((a, b) for a, b in pairs if b.start < a.stop), None)
    boxes = [(box, place) for place in places for box in _boxes(shape, place)]
    return _sharing(boxes, 0)


def _boxes(shape: tuple[int, ...], place: Place) -> Iterator[Box]:
    if isinstance(place, Chunk):
        bounds = zip(place.offsets, place.sizes, strict=True)
        yield tuple((offset, offset + size) for offset, size in bounds)
    else:
        yield from _boxes_of_span(shape, place.start, place.stop)


def _boxes_of_span(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Box]:
    """Yield the blocks of which a span of a tensor's elements consists, at most 2 an axis."""
    if len(shape) == 1:
        yield ((start, stop),)
        return
    inner = math.prod(shape[1:])
    (first, begin), (last, end) = divmod(start, inner), divmod(stop, inner)
    if first == last:
        yield from (((first, first + 1), *box) for box in _boxes_of_span(shape[1:], begin, end))
        return
    if begin:
        rows = _boxes_of_span(shape[1:], begin, inner)
        yield from (((first, first + 1), *box) for box in rows)
        first += 1
    if first < last:
        yield ((first, last), *((0, size) for size in shape[1:]))
    if end:
        yield from (((last, last + 1), *box) for box in _boxes_of_span(shape[1:], 0, end))


def _sharing(boxes: list[tuple[Box, Place]], axis: int) -> tuple[Place, Place] | None:
    """Return the places of two boxes that share an element, of boxes that do before this axis."""
    if len(boxes) < 2:
        return None
    if axis == len(boxes[0][0]):
        return boxes[0][1], boxes[1][1]
    cuts = sorted({bound for box, _ in boxes for bound in box[axis]})
    for low, high in pairwise(cuts):
        slab = [entry for entry in boxes if entry[0][axis][0] <= low and high <= entry[0][axis][1]]
        shared_places = _sharing(slab, axis + 1)
        if shared_places is not None:
            return shared_places
    return None
