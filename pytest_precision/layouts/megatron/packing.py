"""Parts: the logical tensors in a stored tensor, and which of its elements each of them is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from torch import Tensor

from pytest_precision.engine.observation import Span


class Part(NamedTuple):
    """A logical tensor inside a stored one, and its elements there.

    Attributes:
        name: name of the logical tensor.
        shape: shape of the logical tensor.
        span: its elements in the flattened stored tensor.
    """

    name: str
    shape: tuple[int, ...]
    span: Span


Parts = Mapping[str, tuple[Part, ...]]
"""Name of a stored tensor to what it holds, in the order of its elements."""


def alone(name: str, tensor: Tensor) -> tuple[Part, ...]:
    """Return the parts of a stored tensor that is one logical tensor."""
    return (Part(name, tuple(tensor.shape), Span(0, tensor.numel())),)


def overlap(one: Span, other: Span) -> Span | None:
    """Return the elements in both ranges; None if there are none."""
    start, stop = max(one.start, other.start), min(one.stop, other.stop)
    return Span(start, stop) if start < stop else None


def split_flat(
    parts: tuple[Part, ...], flat: Tensor, held: Span
) -> Iterator[tuple[Part, Span, Tensor]]:
    """Split `flat`, the elements `held` of a stored tensor, into logical tensors.

    Yields:
        The part, which of its elements these are, and the elements, flat.
    """
    for part in parts:
        both = overlap(part.span, held)
        if both is not None:
            span = Span(both.start - part.span.start, both.stop - part.span.start)
            yield part, span, flat[both.start - held.start : both.stop - held.start]


def logical_values(parts: tuple[Part, ...], stored: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the logical tensors in a stored tensor by name, as views."""
    flat = stored.view(-1)
    for part in parts:
        yield part.name, flat[part.span.start : part.span.stop].view(part.shape)
