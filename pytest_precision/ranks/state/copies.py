"""Copies of plain containers, by which changes in a module's data are detected."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from typing import Any

import torch

from pytest_precision._torch.dispatch import version

MAPPINGS = frozenset({dict, OrderedDict, defaultdict, Counter})
SETS = frozenset({set, frozenset})
SEQUENCES = frozenset({list, tuple, deque})
TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
SCALARS = frozenset({bool, int, float, complex, str, bytes})

COPIED_ELEMENTS = 5_000
"""Most elements copied per module; of containers beyond that, only the size is kept."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a container's contents: its type, size, elements and values.

    Attributes:
        kind: type of the container.
        size: number of its elements; for a tensor, the number of writes to it.
        elements: keys of a mapping, elements of a set, or copies of the elements of a sequence;
            None if they were not copied.
        values: copies of the values of a mapping.
    """

    kind: type
    size: int
    elements: Any = None
    values: tuple[object, ...] = ()

    def holds_for(self, value: Any) -> bool:
        """Return whether a container or tensor has not changed since it was copied."""
        kind = type(value)
        if kind is not self.kind or _size(value) != self.size:
            return False
        if self.elements is None:
            return True
        if self.kind in SEQUENCES:
            return all(map(same, value, self.elements))
        if self.kind in SETS:
            return bool(value == self.elements)
        return tuple(value) == self.elements and all(map(same, value.values(), self.values))

    def refill(self, value: Any) -> None:
        """Restore the elements of a container from this copy."""
        if self.elements is None or self.kind is frozenset:
            return
        if self.kind is tuple:
            for element, copy in zip(value, self.elements, strict=True):
                if type(copy) is Copy:
                    copy.refill(element)
            return
        value.clear()
        (value.extend if self.kind in SEQUENCES else value.update)(original(self))

    def __str__(self) -> str:
        if self.elements is None:
            unit = "writes" if self.kind in TENSORS else "elements"
            return f"a {self.kind.__name__} with {self.size} {unit}"
        return repr(original(self))


class Copier:
    """Copies the data of one module, up to `COPIED_ELEMENTS` elements."""

    def __init__(self) -> None:
        self._left = COPIED_ELEMENTS

    def __call__(self, value: Any) -> Any:
        """Return the copy of a plain container or tensor; return any other value unchanged."""
        kind = type(value)
        if kind in TENSORS and not value.is_inference():
            return Copy(kind, version(value))
        if kind not in MAPPINGS | SETS | SEQUENCES:
            return value
        self._left -= len(value)
        if self._left < 0:
            return Copy(kind, len(value))
        if kind in SETS:
            return Copy(kind, len(value), frozenset(value))
        if kind in SEQUENCES:
            return Copy(kind, len(value), tuple(map(self, value)))
        return Copy(kind, len(value), tuple(value), tuple(map(self, value.values())))


def same(value: object, before: Any) -> bool:
    """Return whether a value is unchanged: the same object or scalar, or equal to its copy."""
    if type(before) is Copy:
        return before.holds_for(value)
    if value is before:
        return True
    # `==` is not called on other objects: it may do anything, even start a collective.
    return type(value) is type(before) and type(value) in SCALARS and value == before


def original(value: Any) -> Any:
    """Build a container from its saved copy; return any other value unchanged."""
    if type(value) is not Copy or value.elements is None:
        return value
    if value.kind in MAPPINGS:
        return dict(zip(value.elements, map(original, value.values), strict=True))
    if value.kind in SETS:
        return value.kind(value.elements)
    return value.kind(map(original, value.elements))


def _size(value: Any) -> int:
    return version(value) if type(value) in TENSORS else len(value)
