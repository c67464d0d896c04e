"""Which tensors of the original model a stored tensor contains, and where in it they lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from torch import Tensor

from pytest_precision.engine.observation import Span


class Part(NamedTuple):
    """One tensor of the original model inside a stored tensor, and its range of elements there.

    Attributes:
        name: name of the logical tensor, which is the one of the original model.
        shape: shape of the logical tensor.
        span: its elements in the flattened stored tensor.
    """

    name: str
    shape: tuple[int, ...]
    span: Span


Parts = Mapping[str, tuple[Part, ...]]
"""Name of a stored tensor to what it holds, in the order of its elements."""


def alone(name: str, tensor: Tensor) -> tuple[Part, ...]:
    """Return a tuple of the only `Part` of an unpacked tensor, which has all its elements."""
    return (Part(name, tuple(tensor.shape), Span(0, tensor.numel())),)


def held_part(whole_span: Span, owned_span: Span) -> Span | None:
    """Return the overlap of two spans, counted from the start of `whole_span`, or None."""
    start, stop = max(whole_span.start, owned_span.start), min(whole_span.stop, owned_span.stop)
    return Span(start - whole_span.start, stop - whole_span.start) if start < stop else None


def split_flat(
    parts: tuple[Part, ...], flat_tensor: Tensor, owned_span: Span
) -> Iterator[tuple[Part, Span, Tensor]]:
    """Split a range of a stored tensor's elements into those of each tensor packed in it.

    Yields:
        The part, which of its elements these are, and the elements, flat.
    """
    for part in parts:
        span = held_part(part.span, owned_span)
        if span is not None:
            first = part.span.start - owned_span.start
            yield part, span, flat_tensor[first + span.start : first + span.stop]


def logical_values(parts: tuple[Part, ...], stored_tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield name and view of each tensor that is packed in a stored tensor."""
    flat_tensor = stored_tensor.view(-1)
    for part in parts:
        yield part.name, flat_tensor[part.span.start : part.span.stop].view(part.shape)
